"""Holding a job: which run it is, is read once the lease is held."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Ended
from penstock.checkpoint.tenure import Tenure
from penstock.metadata.file_store import FileObjectStore
from penstock.metadata.lease import LeaseHolder, LeaseState
from tests.support.checkpoints import checkpoint
from tests.support.hooked_store import HookedStore
from tests.support.stopped_job import PATHS

ELSEWHERE = LeaseHolder("elsewhere", 1, "1", "boot", "pid:[1]", "old", "2024-01-01T00:00:00+00:00")
LEASE_MS = 600
TIMEOUT_S = 60


@pytest.fixture
def objects(tmp_path: Path) -> HookedStore:
    return HookedStore(FileObjectStore(tmp_path))


def log_of(objects: HookedStore, run_id: str, ended: Ended | None) -> tuple[CheckpointLog, CheckpointRecord]:
    log = CheckpointLog(objects, PATHS)
    claim = log.claim(run_id)
    record = replace(checkpoint(claim, 1), ended=ended)
    log.append(record)
    return log, record


def begun(objects: HookedStore) -> Tenure:
    return Tenure.begin(objects, PATHS, CheckpointLog(objects, PATHS), LEASE_MS)


def test_a_restart_keeps_the_id_of_a_run_that_has_not_ended(objects: HookedStore) -> None:
    log_of(objects, "old", None)
    tenure = begun(objects)
    assert tenure.run_id == "old"
    assert LeaseState.decode(objects.get(PATHS.lease), PATHS.lease).holder.run_id == "old", "others are told that one"
    tenure.leave()


def test_a_run_that_has_ended_or_was_followed_by_another_is_not_continued(objects: HookedStore) -> None:
    log_of(objects, "old", "stopped")
    tenure = begun(objects)
    assert tenure.run_id != "old"
    tenure.leave()
    log_of(objects, "newer", None)
    CheckpointLog(objects, PATHS).claim("newest")
    tenure = begun(objects)
    assert tenure.run_id not in {"old", "newer", "newest"}
    tenure.leave()


def test_a_start_that_waits_while_the_old_run_ends_is_a_run_of_its_own(objects: HookedStore) -> None:
    log, record = log_of(objects, "old", None)
    held = LeaseState(ELSEWHERE, 600_000, "token")
    objects.put_if_absent(PATHS.lease, held.encode())
    looked = threading.Event()
    found: list[Tenure] = []
    real = objects.get_with_tag

    def get_with_tag(key: str) -> tuple[bytes, str]:
        if key == PATHS.lease:
            looked.set()
        return real(key)

    objects.get_with_tag = get_with_tag  # type: ignore[method-assign]
    starting = threading.Thread(target=lambda: found.append(begun(objects)))
    starting.start()
    assert looked.wait(TIMEOUT_S), "it waits for the lease"
    log.append(replace(record, id=replace(record.id, millis=2), parent=record.id, ended="stopped"))
    objects.put_if_match(PATHS.lease, replace(held, renewal=1, released=True).encode(), real(PATHS.lease)[1])
    starting.join(TIMEOUT_S)
    assert found[0].run_id != "old"
    found[0].leave()
