"""The batches that a streaming query hands over, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.batch.batch import OfferedBatch, TaskSsp
from penstock.batch.portions import PortionRead
from penstock.batch.watermarks import GivenWatermark, QueryWatermark, TimeFlow, Watermarks
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import End, PlannedBatch
from penstock.driver.feed.offered import OfferedFeed, merged_times, next_batch
from penstock.errors import PenstockError
from penstock.graph.specs import WindowSpec
from penstock.testing import SettableClock


def at(task: int, stream: str = "rows") -> TaskSsp:
    return TaskSsp(task, SystemStreamPartition("spark", stream, task))


def feed() -> OfferedFeed:
    app = ps.StreamApplication("a")
    app.input("spark.rows").send_to(app.output("m.out"))
    return OfferedFeed(app.graph(), EventTime(None, {}), SYSTEM_CLOCK)


def test_a_batch_is_planned_once_it_is_offered_and_only_behind_the_one_before() -> None:
    offered, boundary = feed(), Boundary({at(0): 7, at(1): 7})
    assert isinstance(offered.next(boundary), End)
    offered.offer(8)
    assert isinstance(offered.next(boundary), End), "batch 7 is missing"
    offered.offer(7)
    planned = offered.next(boundary)
    assert isinstance(planned, PlannedBatch)
    assert {key: (each.offsets.start, each.offsets.end) for key, each in planned.ranges.portions.items()} == {
        at(0): (7, 8),
        at(1): (7, 8),
    }
    assert isinstance(offered.next(Boundary({at(0): 8, at(1): 8})), End), "it has been processed"


def test_inputs_are_never_at_different_batches() -> None:
    with pytest.raises(PenstockError, match=r"all at one batch, not at \[7, 8\]"):
        next_batch(Boundary({at(0): 7, at(1): 8}))


def test_the_rows_of_a_dataframe_are_one_partition_for_the_watermark() -> None:
    times = {at(0): 1_000, at(1): 5_000, at(0, "other"): 3_000}
    boundary = Boundary({at(0): 1, at(1): 1, at(0, "other"): 1, at(1, "other"): 1}, event_times=times)
    assert merged_times(boundary).event_times == {
        at(0): 5_000,
        at(1): 5_000,
        at(0, "other"): 3_000,
        at(1, "other"): 3_000,
    }


def test_a_drain_runs_the_offered_batch_and_then_one_without_rows() -> None:
    offered, before, behind = feed(), Boundary({at(0): 7, at(1): 7}), Boundary({at(0): 8, at(1): 8})
    offered.offer(7, OfferedBatch("plan"))
    first = offered.drain(before)
    assert isinstance(first, PlannedBatch)
    assert (first.control, first.offered, len(first.ranges.portions)) == ("none", OfferedBatch("plan"), 2)
    last = offered.drain(behind)
    assert isinstance(last, PlannedBatch)
    assert (last.control, last.offered, len(last.ranges.portions)) == ("drain", None, 0)
    assert isinstance(offered.drain(replace(behind, closing="drained")), End)
    again = offered.drain(before)
    assert isinstance(again, PlannedBatch), "a lost container leads back"
    assert again.control == "none"


def timed_feed() -> tuple[OfferedFeed, list[str]]:
    """With the ids of its operators."""
    app = ps.StreamApplication("a")
    rows = app.input("spark.rows", watermark=ps.BoundedOutOfOrderness(max_delay_ms=1_000))
    rows.map(lambda value: value).send_to(app.output("m.out"))
    graph = app.graph()
    return OfferedFeed(graph, EventTime(TimeFlow.of(graph), {}), SettableClock(50_000)), [
        op.id for op in graph.operators
    ]


def test_a_timer_of_event_time_is_due_at_once_when_the_watermark_has_come_to_it() -> None:
    offered, operators = timed_feed()
    source = operators[0]
    before = Boundary(
        {at(0): 3, at(1): 3},
        batch=3,
        batch_time_ms=40_000,
        event_times={at(1): 9_000},
        watermarks={source: 5_000},
        next_due={source: (8_000, None)},
    )
    assert offered.next_due_ms(before) == 0
    assert offered.next_due_ms(replace(before, next_due={source: (8_001, None)})) is None, "the watermark is 8 s"
    standing = replace(before, watermarks=dict.fromkeys(operators, 8_000))
    assert offered.next_due_ms(standing) == 40_001, (
        "what the last batch has left is due, but keeps no query from its end"
    )


def test_a_timer_of_processing_time_is_due_when_its_time_comes() -> None:
    offered = feed()
    boundary = Boundary({at(0): 3}, batch=3, batch_time_ms=40_000, next_due={"p": (None, 70_000)})
    assert offered.next_due_ms(boundary) == 70_000
    assert offered.next_due_ms(replace(boundary, next_due={"p": (None, 39_000)})) == 40_001
    assert offered.next_due_ms(replace(boundary, next_due={"p": (None, None)})) is None


def test_the_watermark_moves_in_the_first_batch_of_a_start() -> None:
    """As Spark's."""
    offered, _ = timed_feed()
    boundary = Boundary({at(0): 3, at(1): 3}, batch=3, batch_time_ms=1, event_times={at(1): 9_000})
    offered.offer(3)
    planned = offered.next(boundary)
    assert isinstance(planned, PlannedBatch)
    assert set(planned.moment.watermarks.firing.values()) == {8_000}


def test_the_watermark_of_spark_counts_in_place_of_that_of_rows() -> None:
    """And never falls."""
    app = ps.StreamApplication("a")
    app.input("spark.rows", watermark=QueryWatermark()).map(lambda value: value).send_to(app.output("m.out"))
    graph = app.graph()
    ids = [op.id for op in graph.operators]
    offered = OfferedFeed(graph, EventTime(TimeFlow.of(graph), {}), SettableClock(50_000))
    assert offered.needs_watermark
    boundary = Boundary({at(0): 3}, event_times={at(0): 9_000}, next_due={ids[1]: (900, None)})

    def planned(late: int, firing: int, before: Boundary) -> Watermarks:
        offered.offer(3, watermark=GivenWatermark(late, firing))
        found = offered.next(before)
        assert isinstance(found, PlannedBatch)
        return found.moment.watermarks

    first = planned(200, 500, boundary)
    assert (first.late, first.firing) == (dict.fromkeys(ids, 200), dict.fromkeys(ids, 500))
    after = replace(boundary, watermarks=first.firing)
    assert offered.next_due_ms(after, GivenWatermark(500, 899)) is None
    assert offered.next_due_ms(after, GivenWatermark(500, 900)) == 0
    older = replace(boundary, watermarks=dict.fromkeys(ids, 7_000), next_due={})
    found = planned(500, 800, older)
    assert (found.late, found.firing) == (dict.fromkeys(ids, 7_000), dict.fromkeys(ids, 7_000))


class Quiet:
    """A window over two inputs, of which one gets no rows any more."""

    def __init__(self, idle_ms: int) -> None:
        app = ps.StreamApplication("a")
        policy = ps.BoundedOutOfOrderness(max_delay_ms=0)
        both = app.input("spark.rows", watermark=policy).merge(app.input("spark.others", watermark=policy))
        window = both.window(ps.Windows.tumbling(size_ms=10_000, aggregates={"n": ps.Count()}))
        window.send_to(app.output("m.out"))
        graph = app.graph()
        (self.window,) = (op.id for op in graph.operators if isinstance(op, WindowSpec))
        self.clock = SettableClock(100_000)
        idle = {SystemStream("spark", name): idle_ms for name in ("rows", "others")}
        self.feed = OfferedFeed(graph, EventTime(TimeFlow.of(graph), idle), self.clock)
        places = {at(task, stream): 0 for task in (0, 1) for stream in ("rows", "others")}
        self.boundary = Boundary(places, next_due={})
        self.feed.begin()

    def batch(self, after_ms: int, rows: dict[str, int], end_ms: int | None = None) -> int | None:
        """Run a batch with a row of these inputs, each with its time. Returns when the next one is due, if a window
        that ends then is open."""
        self.clock.advance(after_ms / 1000)
        number = next_batch(self.boundary)
        self.feed.offer(number)
        planned = self.feed.next(self.boundary)
        assert isinstance(planned, PlannedBatch)
        read = {
            place: PortionRead(number + 1, *(1, 9, rows[name]) if place.task == 0 and name in rows else ())
            for place in self.boundary.positions
            for name in (place.ssp.stream,)
        }
        batch = self.boundary.next_batch(planned.moment, 0)
        due = {} if end_ms is None else {self.window: (end_ms - 1, None)}
        self.boundary = self.boundary.after(batch, planned.ranges, read, due)
        self.feed.ended(1.0, read)
        return self.feed.next_due_ms(self.boundary)

    @property
    def watermark(self) -> int | None:
        return self.boundary.watermarks.get(self.window)


def test_an_input_without_rows_holds_windows_open_until_it_is_idle() -> None:
    job = Quiet(60_000)
    assert job.batch(0, {"rows": 5_000, "others": 4_000}, 10_000) is None
    assert job.batch(10_000, {"rows": 30_000}, 10_000) == 170_000, (
        "idle a minute behind the batch that had no rows of it"
    )
    assert job.batch(1_000, {"rows": 31_000}, 10_000) == 170_000
    assert job.watermark == 4_000
    assert job.batch(59_000, {}, 10_000) == 0, "it is idle, and the window is due at once"
    assert job.watermark == 4_000, "a batch has shown that there were no rows, and not the clock"
    assert job.batch(0, {}, None) is None
    assert job.watermark == 31_000
    assert job.batch(1_000, {"rows": 50_000, "others": 20_000}, 60_000) is None
    job.batch(0, {}, 60_000)
    assert job.watermark == 31_000, "it never falls, and the input counts again"


def test_a_watermark_stays_where_it_is_if_all_inputs_are_idle() -> None:
    job = Quiet(0)
    job.batch(0, {"rows": 5_000, "others": 4_000}, 10_000)
    assert job.batch(1_000, {}, 10_000) is None
    job.batch(1_000, {}, 10_000)
    assert job.watermark == 4_000


def test_how_long_an_input_had_no_rows_begins_again_with_an_epoch() -> None:
    job = Quiet(60_000)
    job.batch(0, {"rows": 30_000}, 10_000)
    job.feed.begin()
    assert job.batch(90_000, {"rows": 31_000}, 10_000) == 250_000
    job.batch(0, {"rows": 32_000}, 10_000)
    assert job.watermark is None


def test_nothing_is_due_because_of_an_idle_input_if_nothing_waits() -> None:
    job = Quiet(60_000)
    assert job.batch(0, {"rows": 30_000}, None) is None
    assert job.batch(0, {"rows": 31_000}, 50_000) is None, "the window ends behind the other input"


def test_operators_wait_behind_what_is_due_and_only_there() -> None:
    """Messages that other operators emit must not be late."""
    app = ps.StreamApplication("a")
    window = ps.Windows.tumbling(size_ms=1_000, aggregates={"n": ps.Count()})
    rows = app.input("spark.rows", watermark=ps.BoundedOutOfOrderness(max_delay_ms=1_000))
    rows.window(window).map(lambda pane: 1).window(window).send_to(app.output("m.out"))
    graph = app.graph()
    first, second = (op.id for op in graph.operators if isinstance(op, WindowSpec))
    offered = OfferedFeed(graph, EventTime(TimeFlow.of(graph), {}), SYSTEM_CLOCK)
    last = dict.fromkeys((op.id for op in graph.operators), 5_000)
    boundary = Boundary({at(0): 3}, batch=3, batch_time_ms=1, event_times={at(0): 9_000}, watermarks=last)
    offered.offer(3)
    waiting, free = (offered.next(each) for each in (replace(boundary, next_due={first: (7_000, None)}), boundary))
    assert isinstance(waiting, PlannedBatch)
    assert isinstance(free, PlannedBatch)
    firing = waiting.moment.watermarks.firing
    assert (firing[first], firing[second]) == (8_000, 6_999)
    assert waiting.moment.watermarks.held == {first: 6_999}
    assert set(free.moment.watermarks.firing.values()) == {8_000}


class Named:
    """The streams that records name, without a log."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def keep(self) -> None:
        self.said.append("keep")

    def taken(self) -> None:
        self.said.append("taken")


def test_records_name_the_output_of_a_batch_until_the_next_one_has_ended() -> None:
    app = ps.StreamApplication("a")
    app.input("spark.rows").send_to(app.output("m.out"))
    debts = Named()
    offered = OfferedFeed(app.graph(), EventTime(None, {}), SYSTEM_CLOCK)
    offered.report_to(debts)
    assert debts.said == ["keep"], "the first epoch publishes before the feed begins, and drops nothing of batch 6"
    debts.said.clear()
    offered.begin()
    offered.offer(7)
    offered.next(Boundary({at(0): 7}))
    assert debts.said == ["keep"], "a commit that is made now names the output of batch 6"
    offered.ended(1.0, {})
    assert debts.said == ["keep", "taken"]
    offered.drain(Boundary({at(0): 8}))
    offered.ended(1.0, {})
    assert debts.said == ["keep", "taken"], "the output of a drain is output of the batch before it"
    offered.begin()
    assert debts.said[-1] == "keep", "the job went back: its record names the output of batch 6 again"
