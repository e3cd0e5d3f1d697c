"""order="event-time": what waits, what is late, what fails, and what is stored meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.runtime.messages.stored import decode_dead_letter
from penstock.testing import TestRunner
from tests.support.oracles.stage_batches import LATE, OUT, Message, StageBatches

FLIGHT = ps.Columns(pa.schema({"n": pa.int64(), "x": pa.float64()}))


class Shows(ps.StreamTask):
    """Emits what it gets; some values fail."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value in (-1, {"n": -1, "x": 1.5}):
            raise ValueError("no")
        headers = [name for name, _ in envelope.headers]
        collector.emit(key=envelope.key, value=[str(envelope.ssp), envelope.offset, envelope.value, *headers])


class Timed(ps.StreamTask):
    """A message sets a timer for its value."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.context.schedule(envelope.key, envelope.value)
        collector.emit(key=envelope.key, value=["message", envelope.timestamp])

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=[timer.firing, timer.time_ms])


class Rows(ps.BatchProcessor):
    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        collector.emit(batch.keys, batch.values)


def ordered(task: Any = Shows, watermark: Any = None, **options: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    late = app.output("m.late")
    options = {"late_to": late, **options}
    app.input("m.in", watermark=watermark).process(task, order="event-time", id="o", **options).send_to(
        app.output("m.out")
    )
    return app


def of_columns(**options: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    late = app.output("m.late", value=FLIGHT)
    rows = app.input("m.in", value=FLIGHT).process_batch(Rows, order="event-time", late_to=late, id="o", **options)
    rows.send_to(app.output("m.out"))
    return app


def values(runner: TestRunner, stream: str = "m.out") -> list[Any]:
    return [message.value for message in runner.output(stream)]


def test_an_arrival_after_the_plan_does_not_cancel_the_alarm() -> None:
    class Overdue(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.context = context

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            if envelope.value["event"] == "departed":
                self.context.schedule(envelope.key, envelope.timestamp + envelope.value["planned_ms"])
            else:
                self.context.cancel(envelope.key)

        def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=timer.key, value=timer.time_ms)

    app = ps.StreamApplication("overdue")
    flights = app.input("m.flights", timestamp=lambda flight: int(flight["at"]))
    overdue = flights.partition_by(lambda flight: flight["tail"]).process(
        Overdue, timers=ps.String(), order="event-time"
    )
    overdue.send_to(app.output("m.out"))
    departed = {"tail": "N1", "event": "departed", "at": 1_000, "planned_ms": 500}
    arrived = {"tail": "N1", "event": "arrived", "at": 5_000}
    for order in ([departed, arrived], [arrived, departed]):
        with closing(TestRunner(app, partitions=1)) as runner:
            runner.input("m.flights", order).run().end_inputs()
            assert [(each.key, each.value, each.timestamp) for each in runner.output("m.out")] == [("N1", 1_500, 1_500)]


def test_a_message_has_its_place_and_headers_however_long_it_waits() -> None:
    with closing(TestRunner(ordered(), partitions=1)) as runner:
        runner.input("m.in", [("k", 1)], timestamp=20).input("m.in", [("k", 2)], timestamp=10, headers={"h": b"1"})
        runner.run().commit().crash().restore().input("m.in", [("k", 3)], timestamp=30).run()
        found = [(each.value, each.timestamp, each.headers) for each in runner.output("m.out")]
        assert found == [(["m.in.0", 1, 2, "h"], 10, (("h", b"1"),)), (["m.in.0", 0, 1], 20, ())]


@pytest.mark.parametrize("app", [ordered, of_columns])
def test_late_messages(app: Callable[[], ps.StreamApplication]) -> None:
    with closing(TestRunner(app(), partitions=1)) as runner:
        runner.input("m.in", [("k", {"n": 1})], timestamp=50).run().advance_watermark(50)
        runner.input("m.in", [("k", {"n": 2})], timestamp=49).input("m.in", [("k", {"n": 3})], timestamp=50).run()
        late = [value[2] if isinstance(value, list) else value for value in values(runner, "m.late")]
        assert ([value["n"] for value in late], [each.timestamp for each in runner.output("m.late")]) == ([2], [49])
        runner.end_inputs()
        assert len(values(runner)) == 2


def test_without_an_output_late_messages_are_counted() -> None:
    job = StageBatches(ordered(late_to=None), "o")
    job.run([Message("k", 1, 10)], watermark=100)
    assert [key for key, _, _ in job.run([Message("k", 2, 99), Message("j", 3, 100)], watermark=101)[OUT]] == ["j"]
    assert job.metrics.total("late-dropped", group="operator.o") == 1
    job.close()


def test_a_message_that_fails_is_a_dead_letter_with_its_place() -> None:
    with closing(TestRunner(ordered(), partitions=1, dead_letter="m.dead")) as runner:
        runner.input("m.in", [("k", 1)], timestamp=30).input("m.in", [("j", -1)], timestamp=20, headers={"h": b"1"})
        runner.run().end_inputs()
        assert [value[2] for value in values(runner)] == [1]
        (letter,) = map(decode_dead_letter, values(runner, "m.dead"))
        assert (str(letter.ssp), letter.offset, letter.key, letter.value) == ("m.in.0", 1, b"j", b"-1")
        assert letter.headers == (("h", b"1"),)
        assert runner.store("o.in-order") == {}


def test_a_dead_letter_of_a_schema_is_json() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in", value=FLIGHT).process(Shows, order="event-time").send_to(app.output("m.out"))
    with closing(TestRunner(app, partitions=1, dead_letter="m.dead")) as runner:
        runner.input("m.in", [("k", {"n": -1, "x": 1.5})]).run().end_inputs()
        (letter,) = map(decode_dead_letter, values(runner, "m.dead"))
        assert letter.value == b'{"n":-1,"x":1.5}'


def test_a_message_that_does_not_decode_waits_for_nothing() -> None:
    with closing(TestRunner(ordered(), partitions=1, dead_letter="m.dead")) as runner:
        runner.input("m.in", [b"1", b"{", b"2"], raw=True).run().end_inputs()
        assert ([value[2] for value in values(runner)], runner.dead_letters) == ([1, 2], 1)


def test_timers_come_before_messages_of_their_time() -> None:
    job = StageBatches(ordered(Timed, timers=ps.String()), "o")
    sent = [Message("k", 20, 10), Message("k", 20, 20), Message("j", 15, 5)]
    found = job.run(sent, watermark=21)[OUT]
    job.close()
    assert [(value, time) for _, value, time in found] == [
        (["message", 5], 5), (["message", 10], 10), (["due", 15], 15), (["due", 20], 20), (["message", 20], 20),
        (["due", 20], 20),
    ]  # fmt: skip


def test_a_message_of_the_watermark_waits_for_others_of_its_time() -> None:
    job = StageBatches(ordered(), "o")
    assert job.run([Message("k", 1, 20)], watermark=20) == {}
    found = job.run([Message("j", 2, 20)], watermark=21)
    assert [key for key, _, _ in found[OUT]] == ["j", "k"]
    assert job.run([Message("j", 3, 20)], watermark=22)[LATE] == [("j", 3, 20)]
    job.close()


@pytest.mark.parametrize("app", [ordered, of_columns])
def test_what_comes_and_goes_between_two_commits_is_in_neither(app: Callable[[], ps.StreamApplication]) -> None:
    job = StageBatches(app(), "o")
    message = {"n": 1, "x": None}
    job.run([Message("k", message, 10), Message("k", message, 40)], watermark=20)
    assert len(job.task.take_changes()["o.in-order"]) == 1
    job.run([Message("k", message, 50)], watermark=30)
    job.run([], watermark=60)
    assert [*job.task.take_changes()["o.in-order"].values()] == [None]
    assert job.entries("o.in-order") == {}
    job.close()


def test_at_a_drain_all_messages_come_with_timers_between_them() -> None:
    patient = ps.BoundedOutOfOrderness(1_000)
    for options, left in (({}, [["drain", 15], ["drain", 40]]), ({"timers_at_drain": "discard"}, [])):
        with closing(TestRunner(ordered(Timed, patient, timers=ps.String(), **options), partitions=1)) as runner:
            runner.input("m.in", [("k", 15)], timestamp=10).input("m.in", [("k", 40)], timestamp=20).run().drain()
            found = values(runner)
        assert [value for value in found if value[0] != "message"] == left
        assert [time for _, time in found] == sorted(time for _, time in found)
        assert [time for what, time in found if what == "message"] == [10, 20]


def test_the_order_of_messages_without_an_offset_is_that_of_their_bytes() -> None:
    app = ps.StreamApplication("a")
    panes = app.input("m.in").window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}))
    first = panes.map(lambda pane: [pane.message["n"], pane.key])
    shown = first.partition_by(lambda value: "all").process(Shows, order="event-time")
    shown.send_to(app.output("m.out"))
    sent = [("c", 1), ("b", 1), ("b", 1), ("a", 1)]
    for partitions in (1, 3):
        with closing(TestRunner(app, partitions=partitions)) as runner:
            runner.input("m.in", sent).run().end_inputs()
            assert [value[2] for value in values(runner)] == [[1, "a"], [1, "c"], [2, "b"]]


def test_a_message_keeps_its_turn_if_its_input_is_gone() -> None:
    def app(*names: str) -> ps.StreamApplication:
        made = ps.StreamApplication("a")
        first, *others = (made.input(name, id=name[2:]) for name in names)
        merged = first.merge(*others, id="merged") if others else first.filter(lambda _: True, id="merged")
        merged.process(Shows, order="event-time", id="o").send_to(made.output("m.out"))
        return made

    with closing(TestRunner(app("m.a", "m.b"), partitions=1)) as runner:
        runner.input("m.b", [("k", 7)], timestamp=5).run().commit().crash()
        runner.restore(app("m.a")).end_inputs()
        assert values(runner) == [["none.none.0", -2, 7]]


def test_a_task_application() -> None:
    class Shown(Shows):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.send("m.out", key=envelope.key, value=[envelope.ssp.stream, envelope.value])

    app = ps.TaskApplication("a", Shown, order="event-time")
    app.input("m.a", value=ps.Long())
    app.input("m.b", value=ps.String())
    app.output("m.out")
    with closing(TestRunner(app, partitions=1)) as runner:
        runner.input("m.a", [("k", 1)], timestamp=20).input("m.b", [("k", "x")], timestamp=10).run().end_inputs()
        assert values(runner) == [["b", "x"], ["a", 1]]


def test_an_order_can_be_added_and_goes_with_a_drain() -> None:
    def app(**options: Any) -> ps.StreamApplication:
        made = ps.StreamApplication("a")
        made.input("m.in").process(Timed, timers=ps.String(), id="o", **options).send_to(made.output("m.out"))
        return made

    with closing(TestRunner(app(), partitions=1)) as runner:
        runner.input("m.in", [("k", 30)], timestamp=10).run().commit().crash()
        runner.restore(app(order="event-time")).input("m.in", [("k", 50)], timestamp=40).run().commit().crash()
        assert values(runner) == [["message", 10], ["due", 30]]
        with pytest.raises(
            ps.IncompatibleError,
            match=r"operator `o` had order=.* wait in it for their turn\. It is not ordered by event time any more",
        ):
            runner.restore(app())
        runner.restore(app(order="event-time")).run().drain().restore(app())


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (lambda s, late: s.process(Shows, order="time"), 'order is "event-time"'),
        (lambda s, late: s.process(Shows, late_to=late), "late_to is for order"),
        (lambda s, late: s.process(Shows, order="event-time", late_to=ps.SystemStream("m", "no")), "not declared"),
        (lambda s, late: s.window(ps.Windows.count(2), order="time"), 'order is "event-time"'),
        (lambda s, late: s.window(ps.Windows.tumbling(5, time="processing"), order="event-time"), "event time"),
        (lambda s, late: s.window(ps.Windows.tumbling(5, allowed_lateness_ms=1), order="event-time"), "lateness"),
        (lambda s, late: s.join(s, print, within_ms=1, order="time"), 'order is "event-time"'),
    ],
)
def test_what_is_refused(declare: Callable[[Any, Any], object], what: str) -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=what):
        declare(app.input("m.in"), app.output("m.late"))
    with pytest.raises(ps.ConfigError, match='order is "event-time"'):
        ps.TaskApplication("a", Shows, order="time")  # type: ignore[arg-type]


def test_a_failure_names_the_message_among_those_that_are_handed_on_together() -> None:
    with closing(TestRunner(ordered(), partitions=1)) as runner:
        runner.input("m.in", [("a", 1), ("b", -1), ("c", 2)]).run()
        with pytest.raises(ps.UserCodeError) as error:
            runner.end_inputs()
    failed = error.value.failed
    assert (failed.stream, failed.offset, failed.key, failed.operator) == ("m.in", 1, "b", "o")
