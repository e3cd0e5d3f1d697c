"""TestRunner: commits, crashes and restores, as a job does them."""

from __future__ import annotations

import gc
import threading
from contextlib import closing
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.messages import UNREADABLE
from penstock.testing import TestRunner


class Count(ps.StreamTask):
    """Counts the messages of a key; the value "commit" asks for a commit."""

    def init(self, context: Any) -> None:
        self.counts = context.store("counts")
        self.seen = 0

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value == "commit":
            coordinator.commit()
        self.seen += 1
        self.counts.put(envelope.key, (self.counts.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=[self.counts.get(envelope.key), self.seen])


def runner_of(**options: Any) -> TestRunner:
    app = ps.StreamApplication("counts")
    app.store("counts", value=ps.Integer())
    app.input("m.in").process(Count, stores=["counts"]).send_to(app.output("m.out"))
    return TestRunner(app, partitions=2, **options)


def test_a_restore_goes_back_to_the_last_commit_and_reads_again() -> None:
    runner = runner_of().input("m.in", [("a", 1), ("b", 1), ("a", 2)]).run().commit()
    runner.input("m.in", [("a", 3), ("c", 1)]).run()
    assert runner.store("counts") == {"a": 3, "b": 1, "c": 1}
    runner.crash().restore()
    assert runner.store("counts") == {"a": 2, "b": 1}
    runner.run()
    assert runner.store("counts") == {"a": 3, "b": 1, "c": 1}
    counts = [message.value[0] for message in runner.output("m.out") if message.key == "a"]
    assert counts == [1, 2, 3, 3], "outputs are written at least once"
    runner.close()


def test_what_a_task_keeps_in_its_fields_is_gone() -> None:
    runner = runner_of().input("m.in", [("a", 1), ("a", 2)]).run().commit().crash().restore()
    runner.input("m.in", [("a", 3)]).run()
    assert runner.output("m.out")[-1].value == [3, 1]


def test_without_a_commit_everything_is_read_again() -> None:
    runner = runner_of().input("m.in", [("a", 1)]).run().crash().restore()
    assert runner.store("counts") == {}
    assert runner.run().store("counts") == {"a": 1}


def test_a_commit_that_the_application_asks_for_counts() -> None:
    runner = runner_of().input("m.in", [("a", 1), ("a", "commit")]).run().crash().restore()
    assert runner.store("counts") == {"a": 2}


def test_many_crashes_in_any_place_end_like_none() -> None:
    messages = [(key, number) for number in range(20) for key in ("a", "b", "c")]
    runner = runner_of()
    for number, message in enumerate(messages):
        runner.input("m.in", [message]).run(batch_messages=1)
        if number % 3 == 0:
            runner.commit()
        if number % 7 == 0:
            runner.crash().restore()
    assert runner.run().store("counts") == {"a": 20, "b": 20, "c": 20}
    runner.close()


def test_input_may_come_while_the_job_is_down() -> None:
    runner = runner_of().input("m.in", [("a", 1)]).run().commit().crash()
    runner.input("m.in", [("a", 2)])
    assert runner.restore().run().store("counts") == {"a": 2}


def test_a_job_that_failed_is_restored() -> None:
    class Fails(Count):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            super().process(envelope, collector, coordinator)
            if envelope.value == "fail" and not failed:
                failed.append(True)
                raise ValueError("once")

    failed: list[bool] = []
    app = ps.StreamApplication("counts")
    app.store("counts", value=ps.Integer())
    app.input("m.in").process(Fails, stores=["counts"]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [("a", 1), ("a", 2)]).run().commit()
    with pytest.raises(ps.UserCodeError, match="once"):
        runner.input("m.in", [("a", "fail")]).run()
    assert runner.store("counts") == {"a": 2}
    assert runner.crash().restore().run().store("counts") == {"a": 3}


def test_calls_in_the_wrong_order_say_what_to_do() -> None:
    runner = runner_of()
    with pytest.raises(ps.ConfigError, match=r"restore\(\) follows crash\(\)"):
        runner.restore()
    runner.crash()
    with pytest.raises(ps.ConfigError, match=r"call restore\(\)"):
        runner.run()


def test_a_run_after_the_end_of_the_inputs_begins_event_time_again() -> None:
    app = ps.StreamApplication("visits")
    visits = app.input("local.visits").window(ps.Windows.tumbling(60_000, aggregates={"n": ps.Count()}), id="w")
    visits.map(lambda pane: pane.message["n"], id="n").send_to(app.output("local.counts"), id="out")
    runner = TestRunner(app).advance_watermark(30_000)
    runner.input("local.visits", [("N1", 1)], timestamp=40_000).end_inputs().commit().crash().restore()
    for time in (6_000, 7_000):  # in two runs: the inputs have not ended after the first one
        runner.input("local.visits", [("N1", 1)], timestamp=time).run()
    assert [message.value for message in runner.advance_watermark(60_000).output("local.counts")] == [1, 2]


class Nothing(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Drop the message."""


def test_what_a_runner_says_after_a_drain() -> None:
    app = ps.StreamApplication("copy")
    app.store("s")
    app.input("local.in").process(Nothing, stores=["s"])
    runner = TestRunner(app).input("local.in", ["a"]).run().drain()
    for call in (runner.run, runner.crash, runner.drain, lambda: runner.store("s")):
        with pytest.raises(ps.ConfigError, match=r"has drained and ended: restore\(\) starts the next one"):
            call()
    runner.restore().run().crash()
    with pytest.raises(ps.ConfigError, match=r"has crashed or is closed: call restore\(\) after crash\(\)"):
        runner.run()
    runner.close()


def counting(size: int, *, output: str = "local.counts", **serdes: Any) -> ps.StreamApplication:
    """Counts messages: in windows of this many, and all of them in a store."""
    app = ps.StreamApplication(f"by-{size}")
    app.store("all", **serdes)
    visits = app.input("local.visits")
    visits.process(Counting, stores=["all"], id="count")
    panes = visits.window(ps.Windows.count(size, aggregates={"n": ps.Count()}), id="some")
    panes.map(lambda pane: [pane.firing, pane.message["n"]]).send_to(app.output(output))
    return app


class Counting(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.all = context.store("all")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.all[envelope.key] = self.all.get(envelope.key, 0) + 1


def test_a_changed_application_continues_behind_a_drain() -> None:
    """In windows of another size, to another output, from where the drained run stopped and with its store."""
    visits = [("N1", n) for n in range(3)]
    runner = TestRunner(counting(10), partitions=1).input("local.visits", visits).run().drain()
    assert [message.value for message in runner.output("local.counts")] == [["drain", 3]]
    runner.restore(counting(2, output="other.counts")).input("local.visits", visits).run()
    assert [message.value for message in runner.output("other.counts")] == [["on-time", 2]]
    assert (len(runner.output("local.counts")), runner.store("all")) == (1, {"N1": 6})
    runner.commit().crash().restore().run()
    assert runner.drain().output("other.counts")[-1].value == ["drain", 1]
    runner.close()


def test_a_changed_application_that_does_not_fit_changes_nothing() -> None:
    visits = [("N1", n) for n in range(3)]
    runner = TestRunner(counting(10), partitions=1).input("local.visits", visits).run().commit().crash()
    with pytest.raises(ps.IncompatibleError, match="`all`"):
        runner.restore(counting(10, value=ps.String()))
    with pytest.raises(ps.ConfigError, match=r"call restore\(\)"):
        runner.run()
    assert runner.restore().store("all") == {"N1": 3}
    with pytest.raises(ps.ConfigError, match=r"this job is running"):
        runner.restore(counting(2))
    runner.close()


def test_an_output_of_another_system_is_not_there() -> None:
    with pytest.raises(ps.NotFoundError, match=r"no stream `other.x` in this test: its systems are `local`"):
        runner_of().output("other.x")


@pytest.mark.parametrize("configured", [{}, {"systems.kafka.samza.factory": "memory"}])
def test_messages_of_an_exactly_once_output_are_there_after_the_commit(configured: dict[str, str]) -> None:
    """The systems of a test are in memory, whether the configuration names them or not."""
    app = ps.StreamApplication("copy")
    app.input("kafka.in", value=ps.String()).send_to(app.output("kafka.out", value=ps.String()))
    keys = {**configured, "streams.kafka.out.output.guarantee": "exactly-once"}
    runner = TestRunner(app, partitions=1, config=keys).input("kafka.in", ["a"]).run()
    assert runner.output("kafka.out") == []
    assert [message.value for message in runner.commit().output("kafka.out")] == ["a"]
    runner.input("kafka.in", ["b"]).run().crash().restore().run().commit()
    assert [message.value for message in runner.output("kafka.out")] == ["a", "b"]
    runner.close()


def test_what_cannot_be_sent_to_containers_is_refused_as_on_spark() -> None:
    lock = threading.Lock()
    app = ps.StreamApplication("copy")
    app.input("local.in").map(lambda value: (lock, value)[1]).send_to(app.output("local.out"))
    with pytest.raises(ps.ConfigError, match=r"cannot be sent to the containers: cannot pickle '_thread.lock' object"):
        TestRunner(app)


def test_what_functions_capture_is_the_tests_own_object() -> None:
    seen: list[int] = []

    def see(value: int) -> int:
        seen.append(value)
        return value

    app = ps.StreamApplication("copy")
    app.input("local.in").map(see).send_to(app.output("local.out"))
    TestRunner(app).input("local.in", [1, 2]).run().close()
    assert sorted(seen) == [1, 2]


def counts_of_minutes(**config: Any) -> TestRunner:
    app = ps.StreamApplication("visits")
    visits = app.input("local.visits").window(ps.Windows.tumbling(60_000, aggregates={"n": ps.Count()}), id="w")
    visits.map(lambda pane: pane.message["n"], id="n").send_to(app.output("local.counts"), id="out")
    return TestRunner(app, config=config).input("local.visits", [("N1", 1)], timestamp=5_000, partition=0).run()


def panes(runner: TestRunner) -> list[int]:
    return [message.value for message in runner.output("local.counts")]


def test_an_empty_partition_holds_windows_back_until_it_is_idle(caplog: pytest.LogCaptureFixture) -> None:
    runner = counts_of_minutes()
    assert not caplog.messages, "no window could fire yet"
    for time in (65_000, 66_000):
        runner.input("local.visits", [("N1", 1)], timestamp=time, partition=0).run()
    assert panes(runner) == []
    (message,) = caplog.messages
    assert message == (
        "`local.visits` partition 1 holds the watermark back: it has had no message yet. Windows and timers that "
        "wait for it fire once the partition has later messages, or is idle: after 60 s without messages "
        "(streams.local.visits.idle.ms)"
    )
    assert panes(runner.advance_time(59_999)) == []
    assert panes(runner.advance_time(1)) == [1]
    runner.close()


def test_so_does_one_that_stays_behind(caplog: pytest.LogCaptureFixture) -> None:
    runner = counts_of_minutes(**{"streams.local.visits.idle.ms": 1000})
    runner.input("local.visits", [("N2", 1)], timestamp=7_000, partition=1).run().advance_time(1)
    runner.input("local.visits", [("N1", 1)], timestamp=65_000, partition=0).run()
    (message,) = caplog.messages
    assert "partition 1 holds the watermark back: its highest event time is 1970-01-01T00:00:07" in message
    assert panes(runner.advance_time(999)) == [1, 1]
    runner.close()


def test_a_stream_that_the_test_does_not_have_names_those_that_it_has() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").send_to(app.output("m.out"))
    with pytest.raises(ps.NotFoundError) as raised:
        TestRunner(app).output("m.missing")
    assert str(raised.value) == "there is no stream `m.missing` in this test: system `m` has `m.in` and `m.out`"


class Rated(ps.StreamTask):
    """Emits the rate that was known when an order came."""

    def init(self, context: Any) -> None:
        self.rates = context.store("rates")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if "rate" in envelope.value:
            self.rates.put("rate", envelope.value["rate"])
        else:
            collector.emit(key=None, value=[envelope.value["order"], self.rates.get("rate")])


def rated(**config: Any) -> TestRunner:
    app = ps.StreamApplication("rated")
    app.store("rates", value=ps.Integer())
    orders, rates = app.input("local.orders"), app.input("local.rates")
    orders.merge(rates).process(Rated, stores=["rates"], id="rate").send_to(app.output("local.out"))
    return TestRunner(app, partitions=1, config=config)


def test_bytes_of_another_program_are_read_by_the_input() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.in", [(b"a", b'{"x": 1}'), (b"b", b"no JSON"), b"[5]", (None, None)], raw=True).run()
    assert [(m.key, m.value) for m in runner.output("m.out")] == [("a", {"x": 1}), (None, [5]), (None, None)]
    assert runner.dead_letters == 1
    for wrong, part in (("text", "value"), ({"x": 1}, "value"), (("a", b"1"), "key")):
        with pytest.raises(TypeError, match=f"input `m.in`: with raw=True, a {part} is bytes or None, not"):
            runner.input("m.in", [wrong], raw=True)


class Picky(ps.Serde[str]):
    """Writes what it does not read."""

    @property
    def name(self) -> str:
        return "picky"

    def to_bytes(self, obj: str) -> bytes:
        return obj.encode()

    def from_bytes(self, data: bytes) -> str:
        if data == b"odd":
            raise ValueError("it is odd")
        return data.decode()


class Put(ps.StreamTask):
    """Keeps each value."""

    def init(self, context: Any) -> None:
        self.kept = context.store("kept")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.kept.put(envelope.key, envelope.value)


@pytest.mark.parametrize(
    ("message", "said"), [(("a", "odd"), "the value b'odd' of key 'a'"), (("odd", "a"), "the key b'odd'")]
)
def test_what_does_not_decode_is_named(message: tuple[str, str], said: str) -> None:
    app = ps.StreamApplication("a")
    app.store("kept", key=Picky(), value=Picky())
    stream = app.input("m.in", value=ps.String())
    stream.send_to(app.output("m.out", key=Picky(), value=Picky()))
    stream.process(Put, stores=["kept"])
    runner = TestRunner(app, partitions=1).input("m.in", [("b", "c"), message]).run()
    with pytest.raises(ps.SerdeError, match=f"output `m.out`: {said} cannot be read by Picky: ValueError: it is odd"):
        runner.output("m.out")
    with pytest.raises(ps.SerdeError, match=f"store `kept`: {said} cannot be read by Picky: ValueError: it is odd"):
        runner.store("kept")


def test_a_bootstrap_input_is_read_up_to_its_end_at_the_start_first() -> None:
    runner = rated(**{"streams.local.rates.samza.bootstrap": True})
    runner.input("local.rates", [{"rate": rate} for rate in (1, 2, 3)]).input("local.orders", [{"order": 1}])
    runner.run(batch_messages=1)
    assert [message.value for message in runner.output("local.out")] == [[1, 3]]
    runner.commit().crash().input("local.rates", [{"rate": 4}]).input("local.orders", [{"order": 2}])
    runner.restore().run(batch_messages=1)
    assert [message.value for message in runner.output("local.out")] == [[1, 3], [2, 4]]
    runner.close()


def test_an_input_of_a_higher_priority_fills_a_batch_first() -> None:
    runner = rated(**{"streams.local.rates.samza.priority": 1})
    runner.input("local.orders", [{"order": 1}, {"order": 2}]).run(batch_messages=1)
    runner.input("local.rates", [{"rate": rate} for rate in (1, 2, 3)]).input("local.orders", [{"order": 3}])
    runner.run(batch_messages=1)
    assert [message.value for message in runner.output("local.out")] == [[1, None], [2, None], [3, 3]]
    runner.close()


class Noted(ps.StreamTask):
    """Sends on all messages, in the order in which they come."""

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        collector.send("local.noted", value=envelope.value)


@pytest.mark.parametrize(("rules", "alarms", "count"), [(5, 0, 2), (5, 2, 2), (2, 5, 2), (0, 1, 2), (5, 2, 9000)])
def test_a_task_reads_an_input_of_a_higher_priority_first(rules: int, alarms: int, count: int) -> None:
    """Whatever the names of the inputs, and the order in which they are declared."""
    priorities = {"events": 0, "alarms": alarms, "rules": rules}
    app = ps.TaskApplication("noted", Noted)
    for name in priorities:
        app.input(f"local.{name}", value=ps.String())
    app.output("local.noted", value=ps.String())
    config = {f"streams.local.{name}.samza.priority": rank for name, rank in priorities.items()}
    runner = TestRunner(app, partitions=1, config=config)
    for name in priorities:
        runner.input(f"local.{name}", [f"{name} {n}" for n in range(count)])
    runner.run()
    found = [message.value for message in runner.output("local.noted")]
    ranked = sorted(priorities, key=lambda name: (-priorities[name], name))
    assert found == [f"{name} {n}" for name in ranked for n in range(count)]
    runner.close()


def test_a_runner_that_nobody_closes_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        runner_of().input("m.in", [("a", 1)]).run()
    deadline = monotonic() + 10
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        assert monotonic() < deadline, left
        gc.collect()  # again: a thread that ends its last work may still hold the runner the first time
        left[0].join(0.05)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("serde", [ps.Json(), ps.Bytes(), ps.Columns(pa.schema([("x", pa.int64())]))])
def test_a_message_with_bad_headers_fails(monkeypatch: pytest.MonkeyPatch, serde: ps.Serde[Any], timed: bool) -> None:
    """Systems mark it. It is a dead letter, or ends the run with its place; the messages around it go on."""
    for module in ("penstock.testing.runner.streams", "penstock.system.memory"):
        monkeypatch.setattr(f"{module}.headers_of", tuple)  # it refuses names of Penstock

    def given(**options: Any) -> TestRunner:
        app = ps.StreamApplication("a")
        source = app.input("m.in", value=serde, timestamp=_always if timed else None)
        source.send_to(app.output("m.out", value=serde))
        runner = TestRunner(app, partitions=1, **options)
        for number, headers in enumerate([(), UNREADABLE, (("a", b"1"),), UNREADABLE, ()]):
            runner.input("m.in", [(b"k", b'{"x":%d}' % number)], raw=True, headers=headers)
        return runner

    with closing(given(dead_letter="m.dead")) as runner:
        runner.run()
        assert runner.dead_letters == 2
        assert [message.headers for message in runner.output("m.out")] == [(), (("a", b"1"),), ()]
    with closing(given()) as runner, pytest.raises(ps.UserCodeError, match="the name of one is not UTF-8"):
        runner.run()


def _always(value: Any) -> int:
    return 5
