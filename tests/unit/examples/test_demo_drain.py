"""Both versions of the job of `make demo-drain` on a few flights, without Spark, and what its verification finds."""

from __future__ import annotations

import pytest

from examples.drain import after, before, verify
from examples.windows.data import movements
from examples.windows.verify import expected_sessions
from penstock.testing import TestRunner


def test_both_versions_together_count_each_departure_once() -> None:
    departures, _ = movements(1500)
    first, second = TestRunner(before.app), TestRunner(after.app)
    first.input("local.departures", departures[:700]).run(batch_messages=200).commit().drain()
    second.input("local.departures", departures[700:]).run().end_inputs()
    hours, sessions = (
        [(str(m.key), m.value) for runner in (first, second) for m in runner.output(f"local.{output}")]
        for output in ("airport-delays", "aircraft-sessions")
    )
    assert verify.cut(hours) > 10
    assert verify.cut(sessions) > 100
    assert verify.merged_hours(hours) == verify.expected_hours(departures)
    assert verify.merged_sessions(sessions) == expected_sessions(departures)
    assert len(hours) > len(verify.expected_hours(departures)), "some hours have panes of both versions"
    assert first.restore().store("aircraft") == verify.expected_aircraft(departures[:700])


def test_the_changed_window_is_another_one() -> None:
    (old, *same), (new, *others) = (
        [store for store in app.graph().stores if store.name.endswith(".window")] for app in (before.app, after.app)
    )
    assert old.value_serde.name != new.value_serde.name
    assert [each.value_serde.name for each in same] == [each.value_serde.name for each in others]


@pytest.mark.parametrize(("start", "found"), [(9, 1), (10, 2)])
def test_sessions_that_overlap_are_one(start: int, found: int) -> None:
    cut = [
        ("N1", {"from": 0, "to": 10, "flights": 2, "miles": 5}),
        ("N2", {"from": 0, "to": 9, "flights": 1, "miles": 1}),
    ]
    rest = [("N1", {"from": start, "to": 20, "flights": 1, "miles": 4})]
    merged = verify.merged_sessions(cut + rest)
    assert len([tail for tail, _ in merged if tail == "N1"]) == found
    assert sum(pane["miles"] for pane in merged.values()) == 10


def test_what_differs_is_shown() -> None:
    assert verify.differences("hour", {1: "a", 2: "b"}, {1: "a", 2: "b"}) == []
    assert verify.differences("hour", {1: "a", 2: "b"}, {2: "c", 3: "d"}) == [
        "hour 1: expected a, found None",
        "hour 2: expected b, found c",
        "hour 3: expected None, found d",
    ]
