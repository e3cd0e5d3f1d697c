"""The jars of the Kafka server: fetched once, whoever asks at the same time, and never half. The tool that fetches is a
script here, which fails, hangs and is killed as a test wants it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.errors import CorruptError, NotFoundError
from penstock.testing import kafka_jars as jars
from penstock.testing.kafka_jars import kafka_jars
from tests.support.processes.inspection import has_ended

DEADLINE_S = 60.0
JARS = {name: hashlib.sha256(b"jar\n").hexdigest() for name in jars._JARS}
FETCH = f"from penstock.testing import kafka_jars as jars; jars.JAR_SHA256 = {JARS}; print(jars.kafka_jars(30.0))"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the only programs on the PATH, and a cache that is empty. There is no Ivy."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "cat", "sleep", "touch", "rm"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "_ivy_of_pyspark", lambda: None)
    monkeypatch.setattr(jars, "JAR_SHA256", JARS)
    return folder


def maven(tools: Path, *lines: str) -> None:
    """A Maven that counts its runs and does this. `$jars` is where the jars are wanted."""
    script = [
        "#!/bin/sh",
        'for jars in "$@"; do :; done',
        "jars=${jars#-DoutputDirectory=}",
        f"echo run >> {tools}/runs",
    ]
    (tools / "mvn").write_text("\n".join([*script, *lines, ""]))
    (tools / "mvn").chmod(0o755)


def fetched() -> list[str]:
    return [f'echo jar > "$jars/{name}"' for name in JARS]


def runs(tools: Path) -> int:
    return len((tools / "runs").read_text().splitlines()) if (tools / "runs").exists() else 0


def await_condition(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_fetch() -> subprocess.Popen[str]:
    """Another process that wants the jars."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True, env=environment)


def test_the_jars_are_fetched_once(tools: Path) -> None:
    maven(tools, *fetched())
    folder = kafka_jars()
    assert folder == tools.parent / "cache/penstock" / f"kafka-{jars.KAFKA_VERSION}"
    assert {jar.name for jar in folder.glob("*.jar")} == set(JARS)
    assert kafka_jars() == folder
    assert runs(tools) == 1


def test_two_processes_at_once_fetch_once(tools: Path) -> None:
    maven(tools, f"while [ ! -e {tools}/go ]; do sleep 0.02; done", *fetched())
    processes = [start_fetch(), start_fetch()]
    lock = tools.parent / "cache/penstock" / f"kafka-{jars.KAFKA_VERSION}.lock"
    for process in processes:  # each holds the lock or waits for it
        await_condition(lambda: any(file.path == str(lock) for file in psutil.Process(process.pid).open_files()))  # noqa: B023
    (tools / "go").touch()
    folders = {process.communicate(timeout=DEADLINE_S)[0].strip() for process in processes}
    assert folders == {str(kafka_jars())}
    assert runs(tools) == 1


def test_a_fetch_that_was_killed_leaves_nothing_that_looks_complete(tools: Path) -> None:
    hang = f"[ -e {tools}/go ] || {{ echo $$ > {tools}/pid; sleep 600; }}"
    maven(tools, fetched()[0], hang, *fetched()[1:])
    process = start_fetch()
    await_condition(lambda: (tools / "pid").exists() and (tools / "pid").read_text() != "")
    process.kill()
    process.communicate()
    hanging = psutil.Process(int((tools / "pid").read_text()))
    for tool in (hanging, *hanging.children()):
        tool.kill()
    (tools / "go").touch()
    folder = kafka_jars()
    assert runs(tools) == 2
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_a_fetch_that_hangs_ends_at_its_time_limit(tools: Path) -> None:
    maven(tools, "sleep 600 &", f"echo $! > {tools}/pid", "wait")
    with pytest.raises(NotFoundError, match="`mvn` was not done after 2 s; there is no Ivy"):
        kafka_jars(fetch_s=2.0)
    await_condition(lambda: has_ended(int((tools / "pid").read_text())))  # a process ends some time after its SIGKILL


def test_a_failure_says_what_the_tools_said(tools: Path) -> None:
    maven(tools, "echo '\033[1mINFO hello'", "echo '[ERROR] unknown host -> [Help 1]'", "exit 1")
    with pytest.raises(NotFoundError, match=r"`mvn` failed: unknown host; there is no Ivy"):
        kafka_jars()
    maven(tools, "exit 0")
    with pytest.raises(NotFoundError, match=r"`mvn` fetched no kafka_2.13-"):
        kafka_jars()
    (tools / "mvn").unlink()
    with pytest.raises(NotFoundError, match="there is no `mvn`"):
        kafka_jars()


def test_a_fetch_that_failed_is_tried_again_when_it_was_long_enough_ago(tools: Path) -> None:
    maven(tools, "echo nothing; exit 1")
    with pytest.raises(NotFoundError):
        kafka_jars()
    maven(tools, *fetched())
    with pytest.raises(NotFoundError, match="`mvn` failed: nothing"):
        kafka_jars(retry_after_s=600)
    kafka_jars()
    assert runs(tools) == 2


def test_a_jar_that_is_gone_is_fetched_again(tools: Path) -> None:
    maven(tools, *fetched())
    folder = kafka_jars()
    next(folder.glob("kafka*.jar")).unlink()
    assert len(list(kafka_jars().glob("*.jar"))) == len(JARS)
    assert runs(tools) == 2


def test_a_damaged_jar_in_the_cache_is_deleted_and_fetched_again(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven(tools, *fetched())
    damaged = next(kafka_jars().glob("kafka*.jar"))
    damaged.write_bytes(b"jax\n")  # of the same size
    monkeypatch.setattr(jars, "_verified", set())  # as in a new process
    with pytest.raises(
        CorruptError, match=rf"{damaged.name}, in .* SHA-256 is .*, not {JARS[damaged.name]}. It was del"
    ):
        kafka_jars()
    assert not damaged.exists()
    kafka_jars()
    assert damaged.read_bytes() == b"jar\n"
    assert runs(tools) == 2


def test_a_fetched_jar_with_other_content_is_refused(tools: Path) -> None:
    maven(tools, *fetched(), f'echo other > "$jars/{next(iter(JARS))}"')
    with pytest.raises(CorruptError, match=r"kafka_2.13-.*, which `mvn` fetched, is not the jar"):
        kafka_jars()
    assert {path.name for path in (tools.parent / "cache/penstock").iterdir()} == {f"kafka-{jars.KAFKA_VERSION}.lock"}


def test_a_cache_that_cannot_be_written_is_named(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tools / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tools / "file"))
    with pytest.raises(NotFoundError, match="set XDG_CACHE_HOME to a folder that can"):
        kafka_jars()


def test_no_java_is_a_reason_of_its_own(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotFoundError, match="needs Java 17 or newer, and there is no `java`"):
        jars.find_java()
