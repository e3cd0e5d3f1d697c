"""Holding a job: which run it is, is read once the lease is held."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Ended
from penstock.config.load import load_config
from penstock.driver.watches import Tenure
from penstock.errors import ConfigError
from penstock.job.lease import LeaseHeldError, LeaseHolder, LeaseState
from penstock.objects.file import FileObjectStore
from tests.support.stores.checkpoints import checkpoint
from tests.support.stores.hooked_store import HookedStore
from tests.support.stores.stopped_job import PATHS

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


def begun(objects: HookedStore, named: str | None = None) -> Tenure:
    return Tenure.begin(objects, PATHS, CheckpointLog(objects, PATHS), LEASE_MS, named=named)


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


class TestNamedRuns:
    """A run that the deployer names with `app.run.id`."""

    @pytest.mark.parametrize("ended", [None, "stopped", "end-of-stream"])
    def test_a_start_with_its_name_continues_it(self, objects: HookedStore, ended: Ended | None) -> None:
        log_of(objects, "v1", ended)
        tenure = begun(objects, "v1")
        assert tenure.run_id == "v1"
        tenure.leave()

    @pytest.mark.parametrize("ended", [None, "stopped", "drained"])
    def test_another_name_begins_a_run(self, objects: HookedStore, ended: Ended | None) -> None:
        log_of(objects, "v1", ended)
        tenure = begun(objects, "v2")
        assert tenure.run_id == "v2"
        assert LeaseState.decode(objects.get(PATHS.lease), PATHS.lease).holder.run_id == "v2"
        tenure.leave()

    def test_a_run_that_has_drained_does_not_begin_again(self, objects: HookedStore) -> None:
        log_of(objects, "v1", "drained")
        with pytest.raises(ConfigError, match="run `v1` has drained"):
            begun(objects, "v1")
        assert LeaseState.decode(objects.get(PATHS.lease), PATHS.lease).released
        log_of(objects, "v2", None)
        tenure = begun(objects, "v1")
        assert tenure.run_id == "v1", "a deployment that is rolled back is a run again"
        tenure.leave()

    def test_a_name_that_came_only_as_far_as_its_claim(self, objects: HookedStore) -> None:
        log_of(objects, "v1", None)
        CheckpointLog(objects, PATHS).claim("v2")
        for name in ("v2", "v1"):
            tenure = begun(objects, name)
            assert tenure.run_id == name
            tenure.leave()

    def test_two_names_in_a_race(self, objects: HookedStore) -> None:
        """One is refused while the other one has the job, and is a run of its own afterwards."""
        first = begun(objects, "v1")
        with pytest.raises(LeaseHeldError, match="v1"):
            begun(objects, "v2")
        first.leave()
        second = begun(objects, "v2")
        assert second.run_id == "v2"
        second.leave()

    @pytest.mark.parametrize("name", ["a/b", "*", "-a", "../a", "a" * 65, "a b"])
    def test_names_are_safe_in_paths(self, name: str) -> None:
        with pytest.raises(ConfigError, match=r"`app\.run\.id`"):
            load_config(overrides={"job.name": "a", "app.run.id": name}, environ={})


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
