"""Commands about stores that side inputs fill: no checkpoint has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.cli.main import app as commands
from penstock.config.load import load_config
from penstock.objects.open import open_store
from penstock.system.registry import open_system
from penstock.testing.in_process import InProcessDriver

APP = """
import penstock as ps

class Count(ps.StreamTask):
    def init(self, context):
        self.own, self.planes = context.store("own"), context.store("planes")

    def process(self, envelope, collector, coordinator):
        self.own[envelope.key] = self.planes.get(envelope.key, "no plane")

app = ps.TaskApplication("side", Count)
app.input("local.in")
app.store("own")
app.store("planes", side_inputs=["local.planes"], broadcast=True)
"""
SAYS = (
    "the job only reads store `planes` (side input `local.planes`; every task has all of it), so it is no part of "
    "checkpoints: `penstock stream tail local.planes` shows what fills it"
)


COPIED_APP = APP.replace('"side"', '"copied"').replace(", broadcast=True", "")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job that has made a checkpoint."""
    with made_job(tmp_path_factory.mktemp("side"), "side", APP) as folder:
        yield folder


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Path]:
    """A job whose checkpoint has a copy of a store that it only reads."""
    with made_job(tmp_path, "copied", COPIED_APP, {"stores.planes.backup.factories": "blob"}) as folder:
        yield folder


@contextmanager
def made_job(folder: Path, name: str, code: str, keys: Mapping[str, object] = MappingProxyType({})) -> Iterator[Path]:
    """A folder with a job that ran once, and is not removed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PENSTOCK_HOME", str(folder / "home"))
        patched.chdir(folder)
        (folder / f"{name}_app.py").write_text(code)
        made: dict[str, ps.TaskApplication] = {}
        exec(code, made)
        config = load_config(overrides={"job.name": name, "task.commit.ms": 0, "job.lease.ms": 1, **keys})
        system = open_system(config.system("local"))
        for stream, key in (("in", b"a"), ("planes", b"a")):
            system.admin().create_stream(stream, 1)
            system.writer(None).append(SystemStreamPartition("local", stream, 0), [(0, key, b'"A319"')])
        driver = InProcessDriver(
            made["app"].graph(), config, open_store(config.job.root), {"local": system}, until_latest=True
        )
        driver.loop.run()
        driver.close()
        yield folder


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == status, result.output + repr(result.exception)
    return " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize(
    "command",
    [
        ("state", "get", "side", "planes", "a"),
        ("state", "scan", "side", "planes"),
        ("state", "diff", "side", "planes", "--from", "latest-1"),
        ("state", "verify", "side", "--store", "planes"),
    ],
)
def test_its_state_is_not_there_to_read(home: Path, command: tuple[str, ...]) -> None:
    assert SAYS in call(*command, status=1)


def test_what_is_listed(home: Path) -> None:
    assert SAYS in call("state", "list", "side")
    assert SAYS in call("checkpoint", "show", "side")
    shown = call("status", "side", "--no-wait")
    assert "Stores that the job only reads" in shown
    assert "side input `local.planes`; every task has all of it" in shown
    facts = json.loads(CliRunner().invoke(commands, ("status", "side", "--no-wait", "--json")).stdout)
    (planes,) = facts["sideStores"]
    assert (planes["store"], planes["sideInputs"], planes["broadcast"]) == ("planes", ["local.planes"], True)
    assert 'a "A319" 0' in call("state", "scan", "side", "own")
    call("state", "verify", "side")
    call("state", "gc", "side")


def test_copies_of_a_side_store_are_listed(copied: Path) -> None:
    facts = json.loads(CliRunner().invoke(commands, ("state", "list", "copied", "--json")).stdout)
    held = [(each["store"], each["backend"], each["batch"]) for each in facts["versions"] if each["store"] == "planes"]
    assert held[-1] == ("planes", "blob", 1)
    files = [path for path in blobs(copied) if path.is_file()]
    found = [each for each in facts["objects"] if each["store"] == "planes"]
    assert {each["backend"] for each in found} == {"blob"}
    assert sum(each["count"] for each in found) == len(files) > 0
    assert sum(each["sizeBytes"] for each in found) == sum(path.stat().st_size for path in files)
    says = (
        "the job only reads store `planes` (side input `local.planes`): a host that does not have it begins with the "
        "copy that the last commit made"
    )
    assert says in call("state", "list", "copied")
    assert says in call("checkpoint", "show", "copied")


@pytest.mark.parametrize("backup", ["blob", None])
def test_what_is_left_of_copies_is_collected(tmp_path: Path, backup: str | None) -> None:
    """Nobody says any more that the store is backed up, and the rest of a commit that died is in no checkpoint."""
    with made_job(tmp_path, "copied", COPIED_APP, {"stores.planes.backup.factories": backup} if backup else {}):
        kept = set(blobs(tmp_path))
        assert bool(kept) == bool(backup)
        orphan = (
            tmp_path
            / "home"
            / "jobs"
            / "copied-1"
            / "state"
            / "planes"
            / "0"
            / "blob"
            / f"1-1700000000000-1-{'0' * 64}"
        )
        orphan.parent.mkdir(parents=True, exist_ok=True)
        orphan.write_bytes(b"never in a checkpoint")
        assert "blob 1 deleted" in call("state", "gc", "copied")
        assert set(blobs(tmp_path)) == kept
        call("job", "delete", "copied", "--yes")
        assert blobs(tmp_path) == []


def blobs(folder: Path) -> list[Path]:
    """The objects of the store in the job's folder."""
    return [path for path in folder.glob("home/jobs/copied-1/state/planes/**/*") if path.is_file()]


STARTPOINT = ("startpoint", "set", "side", "--stream", "local.planes", "--all-partitions", "--oldest")


@pytest.mark.parametrize(
    "command",
    [STARTPOINT, (*STARTPOINT, "--app", "side_app.py:app"), ("checkpoint", "set", "side", "--offsets", "offsets.json")],
)
def test_it_has_no_position_to_change(home: Path, command: tuple[str, ...]) -> None:
    (home / "offsets.json").write_text('{"local.planes": {"0": 0}}')
    says = "`local.planes` is a side input of store `planes`, which has no position in a checkpoint"
    assert says in call(*command, status=1)


def test_the_stream_is_not_deleted_while_a_job_needs_it(home: Path) -> None:
    says = call("stream", "delete", "local.planes", status=2)
    assert "stream `local.planes` is a side input of job side-1. To fill it again, give --force" in says


def test_the_configuration(home: Path) -> None:
    result = CliRunner().invoke(commands, ("config", "check", "side_app.py:app", "--json"))
    found = {each["key"]: each for each in json.loads(result.stdout)}
    fills = "side input `local.planes`; every task has all of it"
    assert found["stores.planes.side.inputs"] == {
        "key": "stores.planes.side.inputs",
        "value": "local.planes",
        "origin": f"the application: {fills}",
    }
    assert found["stores.planes.backup.factories"]["value"] is None
    assert found["stores.planes.backup.factories"]["origin"] == f"no part of checkpoints: {fills}"
    assert found["stores.own.backup.factories"]["value"] == "changelog-files"
