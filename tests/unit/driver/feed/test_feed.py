"""The feed of offset ranges: its answers, and how a boundary moves."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import Batch, TaskSsp
from penstock.batch.portions import BatchBounds, Portion, PortionRead
from penstock.checkpoint.streams import IntermediateStream, WrittenRanges
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import BatchRhythm, End, Idle, OffsetFeed, PlannedBatch
from penstock.errors import RetryableError
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.testing import SettableClock

STREAM = SystemStream("m", "in")
SSP = SystemStreamPartition("m", "in", 0)
AT = TaskSsp(0, SSP)
APP = ps.StreamApplication("copy")
APP.input("m.in").send_to(APP.output("m.out"))
GRAPH = APP.graph()
NO_TIME = EventTime(None, {})
BOUNDS = BatchBounds(messages=10, bytes=1 << 20, target_ms=0)


CALM = BatchRhythm(1.0)


def feed_to(
    upcoming: int, until: int | None = None, rhythm: BatchRhythm = CALM, clock: SettableClock | None = None
) -> OffsetFeed:
    ends, to = {SSP: PartitionOffsets(0, upcoming)}, None if until is None else {SSP: until}
    return OffsetFeed(lambda: ends, GRAPH, BOUNDS, rhythm, to, clock or SettableClock(), NO_TIME)


def test_a_batch_from_the_boundary_on_as_large_as_the_pace_allows() -> None:
    planned = feed_to(25).next(Boundary({AT: 3}))
    assert isinstance(planned, PlannedBatch)
    assert planned.ranges.portions == {AT: Portion(OffsetRange(SSP, 3, 25), 10)}
    assert planned.latest == {SSP: 25}


def test_idle_when_there_is_nothing_new_and_the_end_when_there_is_an_end() -> None:
    assert feed_to(3).next(Boundary({AT: 3})) == Idle(1.0)
    assert feed_to(25, until=3).next(Boundary({AT: 3})) == End()


def run(feed: OffsetFeed, boundary: Boundary, took_ms: float = 0) -> None:
    """A batch from there on, which ends."""
    assert isinstance(feed.next(boundary), PlannedBatch)
    feed.ended(took_ms, {})


def test_a_small_batch_waits_for_its_time_and_a_backlog_does_not() -> None:
    clock = SettableClock()
    feed = feed_to(25, rhythm=BatchRhythm(idle_s=0.05, least_s=0.02), clock=clock)
    run(feed, Boundary({AT: 3}))
    run(feed, Boundary({AT: 13}))  # there was more than a batch takes
    run(feed, Boundary({AT: 20}))
    assert feed.next(Boundary({AT: 22})) == Idle(0.02, looked=False)
    clock.advance(0.03)
    assert isinstance(feed.next(Boundary({AT: 22})), PlannedBatch)
    assert isinstance(feed.next(Boundary({AT: 22})), PlannedBatch), "one that did not end is planned again at once"
    feed.ended(0, {})
    feed.begin()
    assert isinstance(feed.next(Boundary({AT: 22})), PlannedBatch), "another epoch begins at once"


def test_small_batches_are_as_far_apart_as_the_latency_target_lets_them() -> None:
    clock = SettableClock()
    feed = feed_to(25, rhythm=BatchRhythm(idle_s=60.0, least_s=0.02, target_s=0.1), clock=clock)
    for took_ms, apart_s in (30, 0.07), (95, 0.02), (500, 0.02):
        run(feed, Boundary({AT: 20}), took_ms)
        waits = feed.next(Boundary({AT: 20}))
        assert isinstance(waits, Idle)
        assert waits.until == pytest.approx(clock.monotonic() + apart_s)
        clock.advance(1.0)


def test_nothing_that_is_due_waits_for_the_latency_target() -> None:
    clock = SettableClock(now_ms=1000)
    feed = feed_to(25, rhythm=BatchRhythm(idle_s=60.0, target_s=10.0), clock=clock)
    run(feed, Boundary({AT: 20}, batch_time_ms=1000))
    timer = Boundary({AT: 25}, 1, 1000, next_due={"timer": (None, 3000)})
    assert feed.next(timer) == Idle(2.0, looked=False)
    between = {STREAM: IntermediateStream(unread=(WrittenRanges(1, 0, {0: ((0, 5),)}),))}
    assert isinstance(feed.next(Boundary({AT: 20}, intermediate=between)), PlannedBatch)
    to_the_end = feed_to(25, until=25, rhythm=BatchRhythm(idle_s=60.0, target_s=10.0), clock=clock)
    run(to_the_end, Boundary({AT: 20}))
    assert to_the_end.next(Boundary({AT: 25})) == End()


def test_a_long_pause_between_batches_is_looked_at_now_and_then() -> None:
    feed = feed_to(25, rhythm=BatchRhythm(idle_s=0.05, least_s=60.0))
    run(feed, Boundary({AT: 20}))
    assert feed.next(Boundary({AT: 22})) == Idle(0.05, looked=False)


def test_nothing_behind_the_end_is_read() -> None:
    feed = feed_to(25, until=5)
    planned = feed.next(Boundary({AT: 3}))
    assert isinstance(planned, PlannedBatch)
    assert planned.ranges.portions == {AT: Portion(OffsetRange(SSP, 3, 5), 2)}
    assert feed.remaining(Boundary({AT: 3})) == 2
    assert feed_to(25).remaining(Boundary({AT: 3})) is None


def test_an_older_boundary_is_read_again() -> None:
    feed = feed_to(25)
    first = feed.next(Boundary({AT: 3}))
    assert isinstance(first, PlannedBatch)
    after = Boundary({AT: 3}, 4, 100).after(Batch(5, 1, 120), first.ranges, {AT: PortionRead(17, 10)}, {})
    assert after == Boundary({AT: 17}, 5, 120, next_due={})
    assert feed.next(Boundary({AT: 3})) == first


def test_batch_time_never_falls_and_no_run_has_the_number_of_another() -> None:
    boundary = Boundary({AT: 3}, batch=4, batch_time_ms=1000)
    assert boundary.next_batch(BatchTime(900), 0) == Batch(5, 1, 1000, before_ms=1000)
    assert boundary.next_batch(BatchTime(1100), 2) == Batch(5, 3, 1100, before_ms=1000)
    assert Boundary({AT: 3}).next_batch(BatchTime(900), 0).before_ms is None


@pytest.mark.parametrize(
    "read",
    [{}, {AT: PortionRead(3)}, {AT: PortionRead(26, 5)}, {AT: PortionRead(20, 11)}, {TaskSsp(1, SSP): PortionRead(9)}],
)
def test_what_cannot_have_been_read_moves_no_boundary(read: dict[TaskSsp, PortionRead]) -> None:
    first = feed_to(25).next(Boundary({AT: 3}))
    assert isinstance(first, PlannedBatch)
    with pytest.raises(RetryableError, match="were reported"):
        Boundary({AT: 3}).after(Batch(1, 1, 0), first.ranges, read, {})
