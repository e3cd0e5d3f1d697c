"""What commands say of stores that side inputs fill: no checkpoint has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.cli.main import app as commands
from penstock.config.load import load_config
from penstock.metadata.open import open_store
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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job that has made a checkpoint."""
    folder = tmp_path_factory.mktemp("side")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PENSTOCK_HOME", str(folder / "home"))
        patched.chdir(folder)
        (folder / "side_app.py").write_text(APP)
        made: dict[str, ps.TaskApplication] = {}
        exec(APP, made)
        config = load_config(overrides={"job.name": "side", "task.commit.ms": 0, "job.lease.ms": 1})
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


def test_a_startpoint(home: Path) -> None:
    says = "`local.planes` is a side input of store `planes`, which has no position in a checkpoint"
    where = ("--stream", "local.planes", "--all-partitions", "--oldest", "--app", "side_app.py:app")
    assert says in call("startpoint", "set", "side", *where, status=1)


def test_a_startpoint_without_the_application(home: Path) -> None:
    says = "`local.planes` is a side input of store `planes`, which has no position in a checkpoint"
    where = ("--stream", "local.planes", "--all-partitions", "--oldest")
    assert says in call("startpoint", "set", "side", *where, status=1)


def test_the_stream_is_not_deleted_while_a_job_needs_it(home: Path) -> None:
    says = call("stream", "delete", "local.planes", status=2)
    assert "stream `local.planes` is a side input of job side-1. To fill it again, give --force" in says


def test_an_offset_in_a_checkpoint(home: Path) -> None:
    (home / "offsets.json").write_text('{"local.planes": {"0": 0}}')
    says = "`local.planes` is a side input of store `planes`, which has no position in a checkpoint"
    assert says in call("checkpoint", "set", "side", "--offsets", "offsets.json", status=1)


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
