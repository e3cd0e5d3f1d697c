"""Operators under another id keep their state: `renamed_from`."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.testing import TestRunner

KINDS = ("window", "join", "timers", "aggregate", "reduce", "deduplicate", "as_of", "order")


class Totals(ps.StreamTask):
    """Adds up the values of a key in a store, and tells the sum at a timer."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals, self.context = context.store("totals"), context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.totals[envelope.key] = self.totals.get(envelope.key, 0) + envelope.value["n"]
        self.context.schedule(envelope.key, 1_000)

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=["timers", self.totals[timer.key]])


class Last(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=["order", envelope.value["n"]])


def application(now: str = "", *, was: str | None = None) -> ps.StreamApplication:
    """Operators whose ids end with `now`, and whose state was made under ids that ended with `was`."""

    def ids(kind: str) -> dict[str, Any]:
        return {"id": f"{kind}{now}", "renamed_from": None if was is None else f"{kind}{was}"}

    app = ps.StreamApplication("shop")
    app.store("totals")
    rates = app.table("rates", history_ms=10_000)
    stream = app.input("m.in", key=ps.String(), timestamp=lambda value: value["at"])
    stream.filter(lambda value: value["at"] == 0, id="rate").send_to(rates)
    out = app.output("m.out")
    panes = stream.window(ps.Windows.tumbling(1_000, aggregates={"n": ps.Sum(lambda v: v["n"])}), **ids("window"))
    panes.map(lambda pane: ["window", pane.message["n"]]).send_to(out)
    joined = stream.join(stream, lambda one, two: ["join", one["n"], two["n"]], within_ms=500, **ids("join"))
    joined.send_to(out)
    stream.process(Totals, stores=["totals"], timers=ps.String(), **ids("timers")).send_to(out)
    stream.aggregate({"n": ps.Count()}, **ids("aggregate")).map(lambda row: ["aggregate", row["n"]]).send_to(out)
    stream.reduce(lambda a, b: {**b, "n": a["n"] + b["n"]}, **ids("reduce")).map(
        lambda value: ["reduce", value["n"]]
    ).send_to(out)
    first = stream.deduplicate("1d", **ids("deduplicate"))
    first.map(lambda value: ["deduplicate", value["n"]]).send_to(out)
    priced = stream.join_table(rates, lambda one, rate: ["as_of", one["n"], rate["n"]], as_of=True, **ids("as_of"))
    priced.send_to(out)
    stream.process(Last, order="event-time", **ids("order")).send_to(out)
    return app


def publish(runner: TestRunner, *numbers: int) -> TestRunner:
    return runner.input("m.in", [("k", {"n": n, "at": 100 * (n - 1)}) for n in numbers]).run()


def results(runner: TestRunner) -> list[list[Any]]:
    return sorted(message.value for message in runner.output("m.out"))


def test_every_kind_goes_on_where_it_was() -> None:
    plain = publish(TestRunner(application()), 1, 2).commit().crash().restore()
    publish(plain, 3).end_inputs()
    renamed = publish(TestRunner(application()), 1, 2).commit().crash().restore(application("-b", was=""))
    publish(renamed, 3).commit().crash().restore(application("-b", was="")).end_inputs()
    assert {each[0] for each in results(plain)} == set(KINDS)
    assert results(renamed) == results(plain)


def test_it_is_renamed_again() -> None:
    runner = publish(TestRunner(application()), 1, 2).commit().crash().restore(application("-b", was=""))
    publish(runner, 3).commit().crash().restore(application("-c", was="")).end_inputs()
    plain = publish(publish(TestRunner(application()), 1, 2).commit().crash().restore(), 3).end_inputs()
    assert results(runner) == results(plain)


def test_a_start_without_it_says_what_to_declare() -> None:
    runner = publish(TestRunner(application()), 1, 2).commit().crash()
    with pytest.raises(ps.IncompatibleError, match='another id now, declare it with renamed_from="window"'):
        runner.restore(application("-b"))


@pytest.mark.parametrize("name", ["window", "window-b"])
def test_it_is_drained_alone_by_either_name(name: str) -> None:
    runner = publish(TestRunner(application()), 1, 2).commit().crash().restore(application("-b", was=""))
    if name == "window":
        with pytest.raises(ps.ConfigError, match="there is no operator window"):
            runner.drain([name])
    else:
        runner.drain([name])
        assert ["window", 3] in results(runner)
        record = runner.restore(application("-c", was=""))._running().job.start.restore_from
        assert record is not None
        assert "window.window" not in record.stores


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([("a", None), ("b", "a")], 'renamed_from="a" names an operator of the application'),
        ([("b", "a"), ("a", None)], "operator `b` has the state of `a`"),
        ([("b", "a"), ("c", "a")], 'renamed_from="a" names an operator'),
        ([("a", "a")], 'renamed_from="a" names an operator'),
        ([("b", "not an id")], "not an id"),
    ],
)
def test_two_operators_have_no_state_in_common(ids: list[tuple[str, str | None]], text: str) -> None:
    def declare() -> None:
        stream: ps.MessageStream[Any] = ps.StreamApplication("a").input("m.in")
        for now, before in ids:
            stream = stream.window(ps.Windows.count(2), id=now, renamed_from=before).map(str)

    with pytest.raises(ps.ConfigError, match=text):
        declare()
