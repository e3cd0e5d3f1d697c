"""The job of `make demo-windows` on a few flights, without Spark, and what its verification finds."""

from __future__ import annotations

from examples.windows import verify
from examples.windows.app import app
from examples.windows.data import movements
from penstock.testing import TestRunner


def test_the_panes_of_the_demo_are_those_of_a_plain_computation() -> None:
    departures, arrivals = movements(1500)
    runner = TestRunner(app, partitions=2)
    runner.input("local.departures", departures).input("local.arrivals", arrivals).run(batch_messages=400).commit()
    runner.crash().restore().end_inputs()
    hours = _found(runner, "airport-hours", "hour")
    sessions = _found(runner, "aircraft-sessions", "from")
    assert hours.differences(verify.expected_hours(departures)) == []
    assert sessions.differences(verify.expected_sessions(departures)) == []
    following = _found(runner, "next-departures", "from")
    assert following.differences(verify.expected_next(departures, arrivals)) == []
    assert len(hours.panes) > 50
    assert len(following.panes) > 100
    assert len(sessions.panes) > 1000
    assert [runner.store(store.name) for store in app.graph().stores] == [{}] * 4


def _found(runner: TestRunner, output: str, start: str) -> verify.Found:
    return verify.Found(output, ((str(m.key), m.value) for m in runner.output(f"local.{output}")), start)


def test_a_pane_that_comes_again_must_be_equal() -> None:
    first = {"hour": 0, "firing": "on-time", "departures": 1, "delay": 4.0}
    again, other = dict(first), {**first, "delay": 5.0}
    found = verify.Found("hours", [("JFK", dict(first)), ("JFK", again)], "hour")
    expected: verify.Panes = {("JFK", 0): {"departures": 1, "delay": 4.0}}
    assert (found.differences(expected), found.repeated) == ([], 1)
    found = verify.Found("hours", [("JFK", dict(first)), ("JFK", other)], "hour")
    assert len(found.differences(expected)) == 1
    found = verify.Found("hours", [("EWR", {**first, "firing": "late"})], "hour")
    assert len(found.differences(expected)) == 3
