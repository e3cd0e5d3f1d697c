"""Holding a job, and what a checkpoint has of its intermediate streams."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.api.time.firing import NO_WATERMARK
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Ended
from penstock.checkpoint.streams import MOST_ENTRIES, IntermediateStream, WrittenRanges
from penstock.config.load import load_config
from penstock.driver.watches import Tenure
from penstock.errors import ConfigError, FencedError, RetryableError
from penstock.job.lease import LeaseHeldError, LeaseHolder, LeaseKeeper, LeaseState
from penstock.objects.file import FileObjectStore
from tests.support.jobs.home import wait_until
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


@pytest.mark.parametrize("ended", [None, "stopped"])
def test_who_has_lost_the_lease_before_it_began_claims_nothing(
    objects: HookedStore, ended: Ended | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store stands still until the lease has run out, and another process takes it."""
    log_of(objects, "old", ended)
    other = LeaseState(ELSEWHERE, 600_000, "token").encode()
    keepers: list[LeaseKeeper] = []
    start, real = LeaseKeeper.start, objects.list

    def starting(keeper: LeaseKeeper) -> None:
        keepers.append(keeper)
        start(keeper)

    def taken(prefix: str) -> list[str]:
        if objects.get(PATHS.lease) != other:
            objects.put_if_match(PATHS.lease, other, objects.get_with_tag(PATHS.lease)[1])
        if ended is not None:  # otherwise it renews the lease, to name the run
            wait_until(lambda: keepers[0].lease.lost is not None, "the loss of the lease")
        return real(prefix)

    monkeypatch.setattr(LeaseKeeper, "start", starting)
    monkeypatch.setattr(objects, "list", taken)
    with pytest.raises(FencedError, match=r"another driver took this job over: .*claims nothing"):
        begun(objects)
    assert objects.get(PATHS.lease) == other


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


def test_only_what_was_written_is_read_and_its_watermark_counts_behind_it() -> None:
    stream = IntermediateStream(positions={0: 5, 1: 9}).after({}, WrittenRanges(1, 100, {0: ((5, 8),), 1: ((12, 13),)}))
    assert (stream.watermark, stream.left(), stream.left_of(0), stream.left_of(1)) == (NO_WATERMARK, 4, 3, 1)
    assert stream.next_ranges() == {0: (5, 8), 1: (12, 13)}

    part = stream.after({0: 8}, None)
    assert (part.watermark, part.positions, part.next_ranges()) == (NO_WATERMARK, {0: 8, 1: 9}, {1: (12, 13)})
    assert (part.needed(0), part.needed(1), part.needed(2)) == (8, 12, None)

    whole = part.after({1: 13}, None)
    assert (whole.watermark, whole.unread, whole.positions) == (100, (), {0: 8, 1: 13})


def test_the_first_range_reaches_over_batches_but_not_over_a_gap() -> None:
    stream = IntermediateStream()
    for batch, ranges in enumerate([((0, 2),), ((2, 4),), ((5, 6),)]):
        stream = stream.after({}, WrittenRanges(batch, batch, {0: ranges}))
    assert stream.next_ranges() == {0: (0, 4)}

    between = stream.after({0: 3}, None)
    assert (between.watermark, between.next_ranges(), between.left()) == (0, {0: (3, 4)}, 2)
    assert between.after({0: 4}, None).next_ranges() == {0: (5, 6)}


def test_a_watermark_without_messages_waits_for_what_was_written_before_it() -> None:
    assert IntermediateStream().after({}, WrittenRanges(1, 7)).watermark == 7

    stream = IntermediateStream().after({}, WrittenRanges(1, 7, {0: ((0, 1),)})).after({}, WrittenRanges(2, 9))
    assert (stream.watermark, len(stream.unread)) == (NO_WATERMARK, 1)
    assert stream.after({0: 1}, None).watermark == 9


def test_a_later_entry_that_was_read_waits_for_the_older_ones() -> None:
    stream = (
        IntermediateStream()
        .after({}, WrittenRanges(1, 5, {0: ((0, 1),)}))
        .after({}, WrittenRanges(2, 6, {1: ((0, 1),)}))
    )
    early = stream.after({1: 1}, None)
    assert (early.watermark, early.next_ranges()) == (NO_WATERMARK, {0: (0, 1)})
    assert early.after({0: 1}, None).watermark == 6


def test_a_watermark_that_stands_still_is_reached_although_there_is_always_something_unread() -> None:
    stream = (
        IntermediateStream()
        .after({}, WrittenRanges(0, 3, {0: ((0, 1),)}))
        .after({}, WrittenRanges(1, 5, {0: ((1, 2),)}))
    )
    for batch in range(2, 9):
        stream = stream.after({0: batch - 1}, WrittenRanges(batch, 5, {0: ((batch, batch + 1),)}))
        assert (stream.left(), len(stream.unread) <= 2) == (2, True)
    assert stream.watermark == 5


def test_the_newest_entries_join_when_there_are_too_many() -> None:
    stream = IntermediateStream()
    for batch in range(3 * MOST_ENTRIES):
        stream = stream.after({}, WrittenRanges(batch, batch, {0: ((2 * batch, 2 * batch + 1),)}))
    assert len(stream.unread) == MOST_ENTRIES
    assert [stream.unread[at].watermark for at in (0, 98, 99)] == [0, 98, 299]
    assert stream.left() == 3 * MOST_ENTRIES


def test_a_watermark_never_falls() -> None:
    stream = (
        IntermediateStream(watermark=50).after({}, WrittenRanges(1, 10, {0: ((0, 1),)})).after({}, WrittenRanges(2, 60))
    )
    assert [stream.watermark, stream.after({0: 1}, WrittenRanges(3, 20)).watermark] == [50, 60]


@pytest.mark.parametrize("read", [{0: 4}, {0: 9}, {1: 1}])
def test_what_is_read_is_within_the_first_range(read: dict[int, int]) -> None:
    stream = IntermediateStream().after({}, WrittenRanges(1, 0, {0: ((5, 8), (9, 10))}))
    with pytest.raises(RetryableError, match=r"partition \d of an intermediate stream"):
        stream.after(read, None)


def test_a_stream_that_was_recreated_while_the_job_runs_is_noticed() -> None:
    stream = IntermediateStream().after({}, WrittenRanges(1, 0, {0: ((5, 8),)}))
    with pytest.raises(RetryableError, match="is not the one that the job wrote before"):
        stream.after({}, WrittenRanges(2, 0, {0: ((0, 3),)}))


def test_a_new_generation_has_nothing_to_read_and_begins_behind_everything() -> None:
    stream = IntermediateStream(2, 7, {0: 3, 1: 4}, (WrittenRanges(5, 9, {0: ((6, 8), (9, 12))}),))
    assert stream.next_generation() == IntermediateStream(3, NO_WATERMARK, {0: 12, 1: 4})
