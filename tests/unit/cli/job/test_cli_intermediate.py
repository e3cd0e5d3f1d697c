"""`penstock status` and `penstock checkpoint show` of a job with durable intermediate streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock import admin
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.streams import STREAMS, IntermediateStream, StreamsSection, WrittenRanges
from penstock.checkpoint.task_versions import build_versions
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.stores.checkpoints import checkpoint
from tests.support.tools.cli import own_home

PATHS = JobPaths("flights", "1")
STREAM = SystemStream("local", "trips-by-tail")
INPUT = SystemStreamPartition("local", "trips", 0)
AT = 1_700_000_000_000
OWN = IntermediateStream(2, AT, {0: 7, 1: 3}, (WrittenRanges(4, AT + 5, {0: ((7, 9), (12, 20))}),))

BETWEEN = StreamsSection({STREAM: OWN}, {STREAM: "by-tail string json"})


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = own_home(tmp_path, monkeypatch)
    log = CheckpointLog(FileObjectStore(home / "jobs"), PATHS)
    made = checkpoint(log.claim("run-a"), 4)
    made = replace(
        made, task_count=1, next_offsets={0: {INPUT: 5}}, tasks={0: build_versions(made.id, {INPUT: "4"}, {}, (2,))}
    )
    log.append(made.having(STREAMS, BETWEEN))


def test_an_import_says_that_what_is_unread_stays() -> None:
    with admin.open_job("flights") as found:
        *_, warning = admin.plan_import(found, admin.export_checkpoint(found)).warnings
    assert "the intermediate stream `local.trips-by-tail`: the 10 messages that were not read yet" in warning
    assert 'reset_operators=["by-tail"]' in warning


@pytest.mark.parametrize("how", ["set", "import"])
def test_a_checkpoint_that_is_written_by_hand_keeps_what_is_unread(how: str) -> None:
    with admin.open_job("flights") as found:
        if how == "set":
            change = admin.plan_offsets(found, {INPUT: 3})
        else:
            lines = [line.replace(':\\"4\\"', ':\\"2\\"') for line in admin.export_checkpoint(found)]
            change = admin.plan_import(found, lines)
        written = admin.write_checkpoint(change)
        last = CheckpointLog(found.objects, PATHS).read().checkpoints[-1]
    assert (str(last.id), last.next_offsets) == (written.checkpoint, {0: {INPUT: 3}})
    assert last.section(STREAMS) == BETWEEN
