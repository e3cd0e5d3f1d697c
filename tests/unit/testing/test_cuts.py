"""`TestRunner(cuts=)`: the same test with inputs that fall into other batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import penstock as ps
from penstock.testing import CutsDifferError, TestRunner


class Overdue(ps.StreamTask):
    """Reports what was not paid in time."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value == "ordered":
            self.context.schedule(envelope.key, envelope.timestamp + 500)
        else:
            self.context.cancel(envelope.key)

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value="not paid")


def overdue(**options: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("overdue")
    app.input("m.in").process(Overdue, timers=ps.String(), **options).send_to(app.output("m.out"))
    return app


def paid_late(app: ps.StreamApplication, **options: Any) -> TestRunner:
    runner = TestRunner(app, partitions=1, cuts=6, **options)
    runner.input("m.in", [("a", "ordered")])
    for n in range(1, 20):
        runner.input("m.in", [("b", "paid")], timestamp=100 * n)
    return runner.input("m.in", [("a", "paid")], timestamp=2_000)


def test_a_difference_is_told_with_what_to_do() -> None:
    with closing(paid_late(overdue())) as runner:
        with pytest.raises(CutsDifferError) as error:
            runner.run()
        found = str(error.value)
        assert found.startswith("output `m.out` depends on how messages fall into batches: its message ")
        assert "at 500 of key 'a' is there only in batches of " in found
        assert 'declare order="event-time"' in str(error.value)


def test_an_application_without_a_difference() -> None:
    with closing(paid_late(overdue(order="event-time"))) as runner:
        runner.run().commit().crash().restore().end_inputs()
        assert [(message.key, message.timestamp) for message in runner.output("m.out")] == [("a", 500)]


class Kept(ps.StreamTask):
    """Numbers messages in a field."""

    def init(self, context: ps.TaskContext) -> None:
        self.number = 0

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.number += 1
        if envelope.value == "bad" and self.number > 1:
            raise ValueError("bad")
        collector.emit(value=self.number)


def kept() -> ps.StreamApplication:
    app = ps.StreamApplication("kept")
    app.input("m.in").process(Kept).send_to(app.output("m.out"))
    return app


def test_the_order_of_messages_is_not_compared() -> None:
    with closing(TestRunner(kept(), partitions=2, cuts=4)) as runner:
        values = (value for value in "abcdefgh")
        runner.input("m.in", values).run()
        assert sorted(message.value for message in runner.output("m.out")) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_failure_in_each_cut() -> None:
    with closing(TestRunner(kept(), partitions=1, cuts=4)) as runner, pytest.raises(ps.UserCodeError):
        runner.input("m.in", ["a", "bad"]).run()


def test_dead_letters_are_counted() -> None:
    class Batches(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.context, self.before = context, 0

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            if self.context.watermark_ms is not None:
                raise ValueError("in a second batch")

    app = ps.StreamApplication("batches")
    app.input("m.in").process(Batches, timers=None).window(ps.Windows.tumbling(5))
    differ = pytest.raises(CutsDifferError, match="the number of dead letters depends on how messages fall")
    with closing(TestRunner(app, partitions=1, cuts=4, dead_letter="m.dead")) as runner, differ:
        runner.input("m.in", [("k", 1), ("k", 2), ("k", 3)], timestamp=7).run()


@pytest.mark.parametrize("act", [TestRunner.drain, lambda runner: runner.advance_time(5), TestRunner.end_inputs])
def test_every_call_reaches_each_cut(act: Callable[[TestRunner], object]) -> None:
    app = ps.StreamApplication("visits")
    panes = app.input("m.in").window(ps.Windows.tumbling(5, time="processing", aggregates={"n": ps.Count()}))
    panes.map(lambda pane: pane.message["n"]).send_to(app.output("m.out"))
    with closing(TestRunner(app, cuts=2)) as runner:
        act(runner.input("m.in", [("k", 1), ("k", 2)]).run())
        assert [message.value for message in runner.output("m.out")] == [2]


def test_a_failure_of_one_batch_alone() -> None:
    class Fails(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.context = context

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            if envelope.value == "last" and self.context.watermark_ms is None:
                raise ValueError("in the first batch")

    app = ps.StreamApplication("first")
    app.input("m.in").process(Fails, timers=None).window(ps.Windows.tumbling(5))
    differ = pytest.raises(CutsDifferError, match=r"in one batch the test fails, and in batches of 1.* it does not")
    with closing(TestRunner(app, partitions=1, cuts=4)) as runner, differ:
        runner.input("m.in", [("k", "first"), ("k", "second"), ("k", "last")]).run()
