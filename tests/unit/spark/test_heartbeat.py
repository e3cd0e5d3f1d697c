"""When a query makes a batch without new rows: the source that Spark asks, without Spark."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.serializers import SpecialLengths
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import ConfigError
from penstock.spark.heartbeat import AT_ONCE, Heartbeat, heartbeat_source, prepare_heartbeat, python_here
from penstock.spark.query.checkpoint_location import plan_of

OLD = b'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"logOffset":3}'
NEW = OLD + b'\n{"penstock.heartbeat": 4}'
NAMED = b'v2\n{"batchWatermarkMs":0,"conf":{}}\n{"first":{"logOffset":3}}'
ADDED = b'\n{"penstock.heartbeat":-1}'
AN_HOUR = 3_600_000
PATIENCE_S = 60
READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
GATE = """
import os, sys, time

class Gate:
    def find_spec(self, name, path=None, target=None):
        while name == "pyspark" and not os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)

sys.meta_path.insert(0, Gate())
"""
"""A `sitecustomize` by which PySpark can be imported once a file is there."""


class Beating:
    """The driver's side and the reader."""

    def __init__(self, folder: Path, *, is_silent: bool = False) -> None:
        self.heartbeat = Heartbeat(folder, is_silent=is_silent)
        source = heartbeat_source("heartbeat")({"due": self.heartbeat._path})
        self.reader: Any = source.streamReader(StructType())
        self.offset = self.reader.initialOffset()

    def is_due(self) -> bool:
        before, self.offset = self.offset, self.reader.latestOffset(self.offset, ReadAllAvailable())
        return bool(before != self.offset)


@pytest.fixture
def beating(tmp_path: Path) -> Any:
    beating = Beating(tmp_path)
    yield beating
    beating.heartbeat.close()
    assert not list(tmp_path.iterdir())


def test_the_first_batch_is_due_at_once_and_then_what_the_driver_says(beating: Beating) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    assert beating.is_due()
    for due_ms, expected in ((None, False), (now_ms - 1, True), (now_ms + AN_HOUR, False), (AT_ONCE, True)):
        beating.heartbeat.set(due_ms)
        assert beating.is_due() is expected
    beating.heartbeat.close()
    assert not beating.is_due(), "a query that has ended has nothing due"
    beating.heartbeat.close()


def test_a_silent_one_has_nothing_due(tmp_path: Path) -> None:
    beating = Beating(tmp_path, is_silent=True)
    assert not beating.is_due()
    beating.heartbeat.set(AT_ONCE)
    assert not beating.is_due()


def test_a_query_that_ends_waits_for_no_timer_that_comes_due_while_it_runs(beating: Beating) -> None:
    beating.reader.prepareForTriggerAvailableNow()
    assert beating.is_due()
    beating.heartbeat.set(SYSTEM_CLOCK.now_ms() + 1)
    assert not any(beating.is_due() for _ in range(100))
    beating.heartbeat.set(AT_ONCE)
    assert beating.is_due(), "the last batch has made something due"


def test_it_has_no_rows(beating: Beating) -> None:
    assert beating.reader.partitions({}, {}) == []


def test_the_processes_of_spark_need_no_penstock() -> None:
    """They get the class by value, and import nothing of Penstock for it."""
    data = cloudpickle.dumps(heartbeat_source("heartbeat"))
    assert pickle.loads(data).name() == "heartbeat"
    code = (
        "import pickle, sys\n"
        "source = pickle.loads(sys.stdin.buffer.read())({'due': '/nowhere'})\n"
        "reader = source.streamReader(None)\n"
        "assert reader.latestOffset(reader.initialOffset(), None) == reader.initialOffset()\n"
        "assert not [name for name in sys.modules if name.startswith('penstock')]\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], input=data, check=True, cwd="/", env=environment)


@pytest.mark.parametrize("family", ["AF_INET", "AF_UNIX"])
def test_the_process_of_the_reader_connects_before_it_imports_pyspark(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits ten seconds for it, and nothing can be set. Here nobody waits longer than a file lets it."""
    (tmp_path / "sitecustomize.py").write_text(GATE)
    gate, path = tmp_path / "gate", "socket"  # the whole path may be too long for a socket
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "GATE": str(gate)}
    is_local = family == "AF_UNIX"
    with socket.socket(getattr(socket, family)) as server:
        server.bind(path if is_local else ("127.0.0.1", 0))
        server.listen()
        server.settimeout(PATIENCE_S)
        if is_local:
            environment["PYTHON_WORKER_FACTORY_SOCK_PATH"] = path
        else:
            environment["PYTHON_WORKER_FACTORY_PORT"] = str(server.getsockname()[1])
            environment["PYTHON_WORKER_FACTORY_SECRET"] = "shibboleth"
        process = subprocess.Popen([python_here(tmp_path), "-m", READER_PROCESS], env=environment)
        try:
            connection, _ = server.accept()
            connection.settimeout(PATIENCE_S)
            with connection, connection.makefile("rwb") as file:
                if not is_local:
                    assert read_text(file) == "shibboleth"
                    write_text(file, "ok")
                assert read_int(file) == process.pid
                gate.touch()
                write_text(file, "2.7")  # what Spark sends first: the driver's Python
                assert read_int(file) == SpecialLengths.PYTHON_EXCEPTION_THROWN
                assert "PYTHON_VERSION_MISMATCH" in read_text(file)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()


def read_int(file: Any) -> int:
    return int(struct.unpack("!i", file.read(4))[0])


def read_text(file: Any) -> str:
    return str(file.read(read_int(file)).decode())


def write_text(file: Any, text: str) -> None:
    file.write(struct.pack("!i", len(text)) + text.encode())
    file.flush()


def test_the_other_processes_of_the_source_have_this_python_as_it_is(tmp_path: Path) -> None:
    command = ["-c", "import sys; print(sys.prefix, sys.flags.no_site, *sys.argv)", "a b", "$c"]
    done = subprocess.run([python_here(tmp_path), *command], check=True, capture_output=True, text=True)
    assert done.stdout == f"{sys.prefix} 0 -c a b $c\n"


class Log:
    """A query's log of offsets: what is read of its last batches, and what is added."""

    def __init__(self, *contents: bytes, runs: bool = False) -> None:
        self.contents = dict(enumerate(contents))
        self.runs = runs

    def newest(self) -> dict[int, bytes]:
        return dict(self.contents)

    def is_read(self) -> bool:
        return self.runs

    def add_heartbeat(self, batch: int, content: bytes) -> None:
        self.contents[batch] = content + ADDED

    def prepare(self, *, timed: bool, continues: bool = True) -> bool:
        return prepare_heartbeat(self, timed=timed, continues=lambda: continues)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("contents", "timed", "continues", "expected", "added"),
    [
        ([], True, False, True, []),
        ([], False, True, False, []),
        ([NEW], False, True, True, []),
        ([NEW, NEW], True, True, True, []),
        ([OLD, OLD], False, True, False, []),
        ([OLD, OLD], True, False, False, []),
        ([OLD, OLD], True, True, True, [0, 1]),
        ([OLD], True, True, True, [0]),
        ([OLD + ADDED, OLD], False, False, True, [1]),
        ([OLD, NEW], True, True, True, [0]),
        ([NAMED, NAMED], True, True, False, []),
    ],
)
def test_the_last_two_batches_have_it_if_the_query_does(
    contents: list[bytes], timed: bool, continues: bool, expected: bool, added: list[int]
) -> None:
    """Spark reads both at a start, and stops if the plan has another number of sources. A process may have died between
    the two, and the location may have been set back."""
    log = Log(*contents)
    assert log.prepare(timed=timed, continues=continues) is expected
    assert [batch for batch, content in log.contents.items() if content != contents[batch]] == added


def test_nothing_is_added_while_the_query_runs() -> None:
    log = Log(OLD, runs=True)
    with pytest.raises(ConfigError, match="running in this program"):
        log.prepare(timed=True)
    assert log.contents == {0: OLD}


def test_a_log_with_names_of_sources_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not Log(NAMED).prepare(timed=True)
    assert "fire in the next batch with new rows" in caplog.text


def test_a_batch_keeps_its_plan() -> None:
    assert plan_of(OLD + ADDED) == plan_of(OLD) != plan_of(NEW)
