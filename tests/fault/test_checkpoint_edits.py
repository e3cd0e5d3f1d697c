"""A checkpoint made by hand on a store that fails as networks do: it is in the log as a whole, once, or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from penstock.admin.checkpoint.change import CheckpointChange, append_successor
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.edit import CheckpointContent, OffsetKey, content_of, with_offsets
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.errors import PenstockError
from penstock.objects.store import ObjectStore
from penstock.testing.faulty_store import FaultyStore
from tests.support.stores.stopped_job import PATHS, StoppedJob, saved, ssp

CONFIG = load_config(overrides={"job.name": "flights", "job.lease.ms": 100}, environ={})
WANTED = {OffsetKey(ssp(1)): 3}


def edit(objects: ObjectStore, log: CheckpointLog) -> CheckpointRecord:
    """The work of `checkpoint set` once it was answered."""
    view = log.known()
    base = view.latest
    assert base is not None
    content = CheckpointContent(with_offsets(base, WANTED), content_of(base, lambda _: {}).markers)
    job = FoundJob(CONFIG, PATHS, objects)
    return append_successor(CheckpointChange(job, "set", base, None, content, view, ()))


@pytest.mark.parametrize("seed", range(24))
def test_all_or_nothing(tmp_path: Path, seed: int) -> None:
    job = StoppedJob(tmp_path)
    job.run(saved(1, ended=None), saved(2))
    objects = FaultyStore(job.objects, seed, rate=0)
    log = CheckpointLog(objects, PATHS)
    log.read()
    objects.rate = 0.2
    made: CheckpointRecord | None = None
    with contextlib.suppress(PenstockError):
        made = edit(objects, log)
    objects.rate = 0
    new = [record for record in job.log.checkpoints if record.epoch > 1]
    assert not job.log.faults
    assert len(new) <= 1
    if made is not None:
        assert new == [made]
    assert all(record.next_offsets[1] == {ssp(1): 3} for record in new)
    again = CheckpointLog(objects, PATHS)
    again.read()
    called_again = edit(objects, again)
    assert job.last == called_again, "whatever was left, the command can be called again"


def test_a_claim_without_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    """Where a process that dies leaves the log."""
    job = StoppedJob(tmp_path)
    job.run(saved(1))
    before = job.last
    job.run(run_id="died")
    assert job.last == before
    log = CheckpointLog(job.objects, PATHS)
    log.read()
    assert edit(job.objects, log).parent == before.id
