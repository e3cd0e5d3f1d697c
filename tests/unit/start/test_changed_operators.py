"""Operators under another id keep their state, and a start may clear single ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.batch.watermarks import TIME
from penstock.errors import IncompatibleError, NotFoundError
from penstock.start.plan import Reset
from penstock.start.positions import StartTimes
from penstock.testing import TestRunner
from penstock.testing.in_process import InProcessDriver
from penstock.wire.ports import RunBrokenError
from tests.support.world.sums_job import TASKS as SUMS_TASKS
from tests.support.world.sums_job import SumsWorld, drain_and_commit, once, raising
from tests.support.world.windowed_job import BACKENDS, Seen, Windowed, entries, seen

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


class Died(BaseException):
    """The driver's process ends here."""


@pytest.fixture(params=BACKENDS)
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Windowed]:
    """A job that has counted six messages; two windows of each key wait."""
    job = Windowed(tmp_path, request.param)
    job.run(job.start(100), 1, 2, 3, 4, 101, 102)
    yield job
    job.close()


@pytest.mark.few(1)
def test_a_changed_window_begins_again_and_its_past_never_returns(job: Windowed) -> None:
    advice = r'id="w".*`penstock drain \S+-1 --wait`.*Or drop what waits in it.*reset_operators=\["w"\]'
    with pytest.raises(IncompatibleError, match=rf"Set it back, with {advice}"):
        job.start(50)
    driver = job.start(50, reset_operators=["w"])
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 6)
    assert [record.reset_operators for record in job.checkpoints[-2:]] == [(), ("w",)]

    driver = job.start(50)  # after a crash behind the start record
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 6)
    assert [record.reset_operators for record in job.checkpoints[-2:]] == [("w",), ()]
    job.run(driver, 103, 104, 149, 150)
    kept = entries(driver, "w.window")
    assert kept

    driver = job.start(50)
    assert (entries(driver, "w.window"), seen(driver)) == (kept, 10)
    driver.fleet.lose(1)
    driver.loop.step()
    assert entries(driver, "w.window") == kept, "neither do they return with a rewind"
    job.run(driver, 250, 250)
    found = [pane for pane in job.panes() if pane[0] >= 100]  # the first run fired the windows before
    assert {(start, end) for start, end, _ in found} == {(100, 150), (150, 200)}
    assert sum(n for *_, n in found) == 4, "nothing of the first run, each message of the others once"


@pytest.mark.few(1)
def test_a_removed_window_is_dropped_and_everything_else_kept(job: Windowed, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(IncompatibleError, match=r'no longer in the application.*Put it back, with id="w"'):
        job.start(None)
    caplog.clear()
    driver = job.start(None, reset_operators=["w", "w"])
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text for text in said if "drops what waits in operator `w`" in text] == said[:1], "once"
    assert seen(driver) == 6
    assert set(job.checkpoints[-1].stores) == {"seen"}
    assert "w" not in job.checkpoints[-1].section(TIME).watermarks
    job.run(driver, 103)
    assert seen(job.start(None)) == 7
    driver = job.start(100)
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 7), "one that comes back begins empty"


@pytest.mark.few(1)
def test_a_crash_before_the_start_record_changes_nothing(job: Windowed) -> None:
    step = {"changelog-files": "open", "blob": "upload", "changelog-stream": "snapshot"}[job.backend]
    driver = job.start(100)
    before = entries(driver, "w.window")
    assert before
    driver = job.driver(50, reset_operators=["w"])

    def die() -> None:
        raise Died

    driver.fleet.at = once(step, die)
    with pytest.raises(BaseException):  # noqa: B017 - a commit thread reports it as an error
        driver.loop.start()
    with pytest.raises(IncompatibleError):
        job.start(50)
    assert entries(job.start(100), "w.window") == before


@pytest.mark.few(1)
def test_a_start_that_is_tried_again_still_clears(job: Windowed) -> None:
    driver = job.driver(50, reset_operators=["w"])
    driver.fleet.at = once("snapshot", lambda: driver.fleet.lose(1))
    driver.loop.start()
    assert (entries(driver, "w.window"), seen(driver)) == ({}, 6)
    assert [record.reset_operators for record in job.checkpoints[-2:]] == [(), ("w",)]
    driver.runner.at = once("reports", raising(RunBrokenError("broken")))
    job.run(driver, 120)
    assert seen(job.start(50)) == 7


def test_a_watermark_is_not_above_that_of_what_the_operator_reads() -> None:
    app = ps.StreamApplication("chain")
    windows = ps.Windows.tumbling(10)
    app.input("m.in", id="in").window(windows, id="a").window(windows, id="b").send_to(app.output("m.out"), id="out")
    operators = app.graph().operators

    def times(*reset: str, **kept: int) -> dict[str, int]:
        return dict(Reset(reset).times(StartTimes(watermarks=kept), operators).watermarks)

    assert times("b", a=50, b=40) == {"a": 50, "b": 40}, "a may still fire what is above 40"
    assert times("b", a=50, b=60) == {"a": 50, "b": 50}
    assert times("b", b=60) == {}
    assert times("a", "b", **{"in": 30}, a=50, b=60) == {"in": 30, "a": 30, "b": 30}
    assert times("gone", a=50, gone=40) == {"a": 50}


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    job = Windowed(tmp_path, "changelog-files")
    job.start(100, reset_operators=["w"])  # nothing to clear yet
    with pytest.raises(NotFoundError, match=r"no operator `x` in the application or in checkpoint .* These can: `w`"):
        job.start(100, reset_operators=["w", "x"])
    with pytest.raises(NotFoundError, match="operator `seen` has nothing that could be reset"):
        job.start(100, reset_operators=["seen"])
    job.close()


def test_totals_of_a_changed_aggregate_begin_at_0(tmp_path: Path) -> None:
    """The refusal says so, and so it is; all other state is kept."""
    world = SumsWorld(tmp_path)

    def start(changed: bool, **given: Any) -> InProcessDriver:
        aggregates: dict[str, Any] = {"sum": ps.Sum(lambda value: value), **({"n": ps.Count()} if changed else {})}
        app = ps.StreamApplication("sums")
        app.store("seen", value=ps.Integer())
        events = app.input("m.events", key=ps.String(), value=ps.Integer()).partition_by(lambda value: "k", id="by")
        events.process(Seen, stores=["seen"], id="seen").aggregate(aggregates, id="totals").send_to(app.output("m.out"))
        driver = world.make(app.graph(), {}, **given)
        driver.loop.start()
        return driver

    def run(driver: InProcessDriver, *values: int) -> list[Any]:
        before = len(out())
        world.put(*values)
        drain_and_commit(driver)
        world.kill(driver)
        return out()[before:]

    def out() -> list[Any]:
        return [json.loads(value or b"") for _, _, value, *_ in world.records("out")]

    world.system.admin().create_stream("out", 1)
    assert run(start(False), 5) == [{"sum": 5}]
    assert run(start(False), 1) == [{"sum": 6}]
    with pytest.raises(IncompatibleError) as caught:
        start(True)
    said = str(caught.value)
    assert "Its totals cannot be continued" in said
    assert 'reset_operators=["totals"]`. They begin at 0 again' in said
    assert "waits" not in said
    assert run(start(True, reset_operators=["totals"]), 2) == [{"sum": 2, "n": 1}]
    driver = start(True)
    engines = [driver.fleet.container_of(task).tasks[task].engine("seen") for task in range(SUMS_TASKS)]
    assert [ps.Integer().from_bytes(value) for each in engines for _, value in each.scan(None, None)] == [3]
    assert run(driver, 3) == [{"sum": 5, "n": 2}]
    world.close()


def shown(name: str, pane: Any) -> list[Any]:
    return [name, pane.window.start_ms, pane.message["n"]]


def two_inputs(order: str, *, mapped: str = "", numbered: bool = False) -> ps.StreamApplication:
    """A window for each of two inputs, which are declared in an order; a map, without an id, before those of `mapped`.
    `numbered`: the windows have no ids either."""
    app = ps.StreamApplication("shop")
    out = app.output("m.out")
    for name in order:
        stream = app.input(f"m.{name}", key=ps.String(), timestamp=lambda value: value)
        stream = stream.map(lambda value: value) if name in mapped else stream
        windows = ps.Windows.tumbling(1_000, aggregates={"n": ps.Count()})
        panes = stream.window(windows, id=None if numbered else f"of-{name}")
        panes.map(partial(shown, name), id=f"shown-{name}").send_to(out)
    return app


def two_streams(runner: TestRunner, a_ms: list[int], b_ms: list[int]) -> TestRunner:
    return runner.input("m.a", [("k", ms) for ms in a_ms]).input("m.b", [("k", ms) for ms in b_ms]).run()


@pytest.mark.parametrize("before", [("ab", ""), ("ba", "ab"), ("ab", "a"), ("ba", "b")])
@pytest.mark.parametrize("after", [("ba", ""), ("ab", "ab"), ("ba", "a"), ("ab", "b")])
def test_event_time_stays_with_its_stream_whatever_the_order_of_declarations(
    before: tuple[str, str], after: tuple[str, str]
) -> None:
    """Operators without an id are numbered, and the numbers move. Of the inputs, one is far ahead."""
    runner = two_streams(
        TestRunner(two_inputs(before[0], mapped=before[1]), partitions=1), [1_000_100, 1_001_200], [100, 300]
    )
    runner.commit().crash().restore(two_inputs(after[0], mapped=after[1]))
    two_streams(runner, [1_001_300, 1_002_000], [200, 1_100])
    two_streams(runner.commit().crash().restore(), [], [1_200]).end_inputs()
    assert results(runner) == [
        *(["a", start, n] for start, n in ((1_000_000, 1), (1_001_000, 2), (1_002_000, 1))),
        *(["b", start, n] for start, n in ((0, 3), (1_000, 2))),
    ]


def test_a_numbered_window_keeps_its_event_time() -> None:
    runner = two_streams(TestRunner(two_inputs("ab", numbered=True), partitions=1), [1_000_100], [100, 1_200])
    before = runner._running().loop.boundary.watermarks
    runner.commit().crash().restore(two_inputs("ab", numbered=True))
    assert (
        runner._running().loop.boundary.watermarks.items() >= {op: before[op] for op in ("input-1", "window-2")}.items()
    )
