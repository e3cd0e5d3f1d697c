"""Windows of a whole job: watermarks from its inputs, an exchange, commits, kills and restarts; against a plain
computation over all messages."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples

BOUND = 15
"""The most by which a message may be earlier than an earlier one of its partition."""


def visits(rng: random.Random, number: int) -> list[tuple[int, str, int, int]]:
    """(partition, key, time, n), none of them late."""
    reached = [0, 0, 0]
    found = []
    for n in range(number):
        partition = rng.randrange(3)
        time = max(0, reached[partition] + rng.randint(-BOUND, 10))
        reached[partition] = max(reached[partition], time)
        found.append((partition, rng.choice("abc"), time, n))
    return found


def application(window: ps.Window) -> ps.StreamApplication:
    app = ps.StreamApplication("windows")
    policy = ps.BoundedOutOfOrderness(BOUND)
    events = app.input("m.in", timestamp=lambda event: int(event["time"]), watermark=policy)
    panes = events.partition_by(lambda event: event["key"]).map(lambda event: event["n"]).window(window, id="w")
    panes.map(shown).send_to(app.output("m.out"))
    return app


def shown(pane: ps.WindowPane[Any, Any]) -> Any:
    return [pane.window.start_ms, pane.window.end_ms, pane.message, pane.firing]


def run(window: ps.Window, seed: int) -> tuple[list[tuple[int, str, int, int]], dict[tuple[str, int, int], Any]]:
    """The messages, and the panes that were emitted on time. One that came again must be the same."""
    rng = random.Random(seed)
    events = visits(rng, rng.randrange(60))
    runner, left = TestRunner(application(window), partitions=3), list(events)
    while left:
        for partition, key, time, n in left[: (size := rng.randint(1, 10))]:
            runner.input("m.in", [{"key": key, "time": time, "n": n}], partition=partition)
        left = left[size:]
        runner.run(batch_messages=rng.choice([None, 3]))
        if rng.random() < 0.3:
            runner.commit()
        if rng.random() < 0.2:
            runner.crash().restore()
    runner.end_inputs()
    panes: dict[tuple[str, int, int], Any] = {}
    for message in runner.output("m.out"):
        start, end, content, firing = message.value
        assert firing == "on-time", "nothing was late"
        assert message.timestamp == end - 1
        assert panes.setdefault((message.key, start, end), content) == content
    assert runner.store("w.window") == {}
    runner.close()
    return events, panes


@pytest.mark.few(1)
@examples(0.4)
@given(st.integers(0, 2**32))
@pytest.mark.parametrize("every", [10, 4])
def test_windows_of_one_size(every: int, seed: int) -> None:
    fold = (list, lambda values, n: sorted([*values, n]))
    events, panes = run(ps.Windows.hopping(10, every, fold=fold), seed)
    expected = defaultdict(list)
    for _, key, time, n in events:
        for start in range(-20, time + 1):
            if start % every == 0 and start <= time < start + 10:
                expected[key, start, start + 10].append(n)
    assert panes == expected


@examples(0.2)
@given(st.integers(0, 2**32))
def test_sliding_windows(seed: int) -> None:
    events, panes = run(ps.Windows.sliding(12, fold=(list, lambda values, n: sorted([*values, n]))), seed)
    expected = {}
    for _, key, end, _ in events:
        span = [n for _, k, time, n in events if k == key and end - 12 < time <= end]
        expected[key, end - 11, end + 1] = sorted(span)
    assert panes == expected


@examples(0.4)
@given(st.integers(0, 2**32))
def test_sessions(seed: int) -> None:
    events, panes = run(ps.Windows.session(6, fold=(list, lambda values, n: sorted([*values, n]))), seed)
    expected: dict[tuple[str, int, int], list[int]] = {}
    for name in "abc":
        session: list[tuple[int, int]] = []
        for time, n in [*sorted((time, n) for _, key, time, n in events if key == name), (10**9, -1)]:
            if session and time >= session[-1][0] + 6:
                expected[name, session[0][0], session[-1][0] + 6] = sorted(each for _, each in session)
                session = []
            session.append((time, n))
    assert panes == expected


@pytest.mark.parametrize("apart", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_window_behind_a_window_loses_nothing(apart: bool) -> None:
    """In one stage and in the next: what the first one fires is on time for the second one, in the same batch."""
    app = ps.StreamApplication("chained")
    events = app.input("m.in", timestamp=lambda event: int(event[1]))
    minutes = events.partition_by(lambda event: event[0]).window(
        ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="short"
    )
    counts = minutes.partition_by(lambda pane: "all") if apart else minutes
    totals = counts.map(lambda pane: pane.message["n"]).window(
        ps.Windows.tumbling(100, fold=(0, lambda total, n: total + n)), id="long"
    )
    totals.map(lambda pane: [pane.window.start_ms, pane.message]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=2)
    rng = random.Random(5)
    times = sorted(rng.randrange(1000) for _ in range(300))
    for number, time in enumerate(times):
        runner.input("m.in", [[rng.choice("ab"), time]], partition=number % 2)
        if number % 7 == 0:
            runner.run()
    runner.end_inputs()
    found: dict[int, int] = defaultdict(int)
    for message in runner.output("m.out"):
        start, total = message.value
        found[start] += total
    expected: dict[int, int] = defaultdict(int)
    for time in times:
        expected[time // 100 * 100] += 1
    assert found == expected
    runner.close()
