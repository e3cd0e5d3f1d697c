"""`penstock checkpoint`: what it lists, shows and exports, also of a log that is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.streams import CHANGELOG_STREAM, ChangelogStreamMarker
from penstock.checkpoint.task_values import CheckpointV1
from penstock.checkpoint.task_versions import build_versions
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.stores.checkpoints import checkpoint
from tests.support.tools import cli

PATHS = JobPaths("flights", "1")
SSP = SystemStreamPartition
MARKER = ChangelogStreamMarker(SSP("local", "aircraft-changelog", 0), "7").serialize()
call = partial(cli.call, "checkpoint")
call_json = partial(cli.call_json, "checkpoint")
pytestmark = pytest.mark.usefixtures("home")


def full(claim: Claim, number: int, versions: tuple[int, ...] = (2,)) -> CheckpointRecord:
    checkpoint_id = CheckpointId(1_700_000_000_000 + number, 5)
    positions = {task: {SSP("local", "flights", task): number + task} for task in range(2)}
    found = {"changelog-files": {"aircraft": f"marker-{number}"}, CHANGELOG_STREAM: {"aircraft": MARKER}}
    return replace(
        checkpoint(claim, number),
        id=checkpoint_id,
        task_count=2,
        stores={"aircraft": "totals string json"},
        next_offsets=positions,
        tasks={
            task: build_versions(checkpoint_id, {ssp: str(n - 1) for ssp, n in own.items()}, found, versions)
            for task, own in positions.items()
        },
    )


@pytest.fixture
def log(home: Path) -> CheckpointLog:
    """Slot 0 a claim, then checkpoints 1 to 4; the last one keeps 2 and 3."""
    log = CheckpointLog(FileObjectStore(home / "jobs"), PATHS)
    claim = log.claim("run-a")
    log.append(replace(full(claim, 1), kind_detail="start"))
    log.append(full(claim, 2, (1, 2)))
    log.append(full(claim, 3))
    kept = {slot: checkpoint_id for slot, checkpoint_id in log.known().retained.items() if slot > 1}
    log.append(replace(full(claim, 4), parent=kept[3], ended="stopped", retained=kept))
    return log


def damage(home: Path, slot: int) -> None:
    path = home / "jobs" / PATHS.checkpoint(slot)
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.usefixtures("log")
def test_list() -> None:
    found = call_json("list", "flights")
    assert [(each["slot"], each["kind"], each["ended"], each["retained"]) for each in found] == [
        (1, "start", None, False),
        (2, "commit", None, True),
        (3, "commit", None, True),
        (4, "commit", "stopped", True),
    ]
    assert [each["versions"] for each in found] == [[2], [1, 2], [2], [2]]


@pytest.mark.usefixtures("log")
def test_show_of_one_that_is_named() -> None:
    found = call_json("show", "flights", "1700000000001-5")
    assert (found["id"], found["kind"], found["retained"]) == ("1700000000001-5", "start", False)
    assert "marker-1" in call("show", "flights", "1700000000001-5")[0]
    assert "penstock checkpoint list flights-1" in call("show", "flights", "1-1", status=1)[1]


@pytest.mark.few(1)
@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("slot", "needed"), [(1, False), (2, True), (4, True)])
def test_a_damaged_record_is_listed_as_such(home: Path, slot: int, needed: bool) -> None:
    damage(home, slot)
    found = call_json("list", "flights")
    assert [each["slot"] for each in found] == [1, 2, 3, 4], "everything is listed all the same"
    (line,) = [each for each in found if each["problem"]]
    assert (line["id"], line["slot"], line["retained"]) == (None, slot, False)
    assert (line["problem"]["key"], line["problem"]["needed"]) == (PATHS.checkpoint(slot), needed)
    text, error = call("list", "flights")
    assert f"slot {slot}" in text
    assert PATHS.checkpoint(slot) in text
    assert ("penstock run ... --from ID" in error) == needed
    facts = call_json("show", "flights")
    assert facts["id"] == ("1700000000003-5" if slot == 4 else "1700000000004-5")
    assert [each["slot"] for each in facts["problems"]] == [slot]
    assert "damaged" in call("show", "flights")[0]


@pytest.mark.usefixtures("log")
def test_a_missing_record_is_listed_where_it_is_needed(home: Path) -> None:
    for slot in (1, 2):
        (home / "jobs" / PATHS.checkpoint(slot)).unlink()
    found = call_json("list", "flights")
    assert [(each["slot"], each["problem"] is None) for each in found] == [(2, False), (3, True), (4, True)]
    assert found[0]["problem"]["what"] == "it is missing"


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("number", [2, 3])
def test_export_of_version_1_whether_it_was_written_or_not(number: int) -> None:
    out, said = call("export", "flights", f"170000000000{number}-5", "--version", "1")
    assert said == (
        "note: version 1 has no place for the markers of `changelog-files`. It leaves out those of `aircraft`\n"
    )
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["key"].endswith('"taskName":"Partition 0","type":"checkpoint"}')
    assert CheckpointV1.decode(second["value"]).offsets == {
        SSP("local", "flights", 1): str(number),
        SSP("local", "aircraft-changelog", 0): f"170000000000{number}-5:7",
    }


def test_export_of_a_version_that_is_not_there(log: CheckpointLog) -> None:
    (claim,) = log.read().claims
    only_first = replace(full(claim, 9), tasks={0: {"1": "{}"}, 1: {"1": "{}"}})
    log.append(replace(only_first, retained={}))
    out, error = call("export", "flights", status=1)
    assert not out
    assert "task.checkpoint.write.versions" in error
    call("export", "flights", "--version", "3", status=2)
