"""Windows against a plain program over all messages, in any order, lateness and batches, with attempts that are
discarded and restarts in between."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.runtime.operators.window import WindowNode
from penstock.runtime.windows import fixed
from penstock.testing import TestRunner
from tests.support.oracles.stage_batches import LATE, OUT, Message, StageBatches

KEYS = st.sampled_from(["a", "b", None])
Step = tuple[list[tuple[str | None, int]], int, int, bool]
"""Messages (key, time) of a batch, how far the watermark moves, attempts that are discarded, and whether a restart
follows."""
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, st.integers(0, 60)), max_size=8),
        st.integers(0, 25),
        st.integers(0, 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def stage(window: ps.Window) -> StageBatches:
    app = ps.StreamApplication("a")
    app.output(LATE)
    panes = app.input("m.in").window(window, id="w")
    panes.map(shown).send_to(app.output(OUT))
    return StageBatches(app, "w")


def shown(pane: ps.WindowPane[Any, Any]) -> list[Any]:
    span = None if pane.span is None else [pane.span.start_ms, pane.span.end_ms]
    return [pane.key, span, pane.message, pane.firing, pane.number]


@contextmanager
def limited(cells: int) -> Iterator[None]:
    """So many cells are in memory, and fire in an attempt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed, "KEPT_BYTES", 220 * cells)
        patch.setattr(WindowNode, "held_cells", cells)
        yield


def run(window: ps.Window, steps: list[Step]) -> list[tuple[list[Any], list[Any]]]:
    """For each batch, and then for the end of the stream: panes, and messages that were too late."""
    job, found, number, watermark = stage(window), [], 0, 0
    for messages, moved, discards, restart in steps:
        watermark += moved
        batch = []
        for key, time in messages:
            number += 1
            batch.append(Message(key, number, time))
        sent = job.run(batch, watermark, discards=discards)
        assert job.failed is None
        found.append((sorted(map(repr, (v for _, v, _ in sent.get(OUT, [])))), [v for _, v, _ in sent.get(LATE, [])]))
        if restart:
            job.restart()
    sent = job.run([], 2**63 - 1, control="end-of-stream")
    found.append((sorted(map(repr, (v for _, v, _ in sent.get(OUT, [])))), []))
    assert job.entries("w.window") == {}, "nothing is left"
    job.close()
    return found


def spans(size: int, every: int, time: int) -> list[tuple[int, int]]:
    return [
        (start, start + size) for start in range(-200, time + 1) if start % every == 0 and start <= time < start + size
    ]


def expected(
    size: int, every: int, lateness: int, steps: list[Step], *, accumulating: bool
) -> list[tuple[list[Any], list[Any]]]:
    """All messages are looked at again for each batch."""
    placed: dict[tuple[str | None, int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    too_late: dict[int, list[int]] = defaultdict(list)
    watermarks = [0]
    number = 0
    for step, (messages, moved, _, _) in enumerate(steps):
        late = watermarks[-1] if step else -(2**63)
        for key, time in messages:
            number += 1
            fits = [span for span in spans(size, every, time) if span[1] + lateness > late]
            for start, end in fits:
                placed[key, start, end].append((step, number, end <= late))
            if not fits:
                too_late[step].append(number)
        watermarks.append(watermarks[-1] + moved)
    watermarks = [*watermarks[1:], 2**63 - 1]
    panes: list[list[Any]] = [[] for _ in watermarks]
    for (key, start, end), members in placed.items():
        in_time = [(step, value) for step, value, late in members if not late]
        late_ones = [(step, value) for step, value, late in members if late]
        shown_before, count = 0, 0
        everything: list[int] = []
        if in_time:
            fires = next(step for step, mark in enumerate(watermarks) if mark >= end)
            everything += [value for _, value in in_time]
            panes[fires].append(repr([key, [start, end], list(everything), "on-time", 0]))
            shown_before, count = len(everything), 1
        for step in sorted({step for step, _ in late_ones}):
            everything += [value for s, value in late_ones if s == step]
            message = everything if accumulating else everything[shown_before:]
            panes[step].append(repr([key, [start, end], list(message), "late", count]))
            shown_before, count = len(everything), count + 1
    return [(sorted(some), too_late[step]) for step, some in enumerate(panes)]


@pytest.mark.few(6)
@pytest.mark.parametrize(("size", "every"), [(10, 10), (12, 4), (10, 7)])
@pytest.mark.parametrize("lateness", [0, 15])
@pytest.mark.parametrize("accumulating", [True, False])
@settings(deadline=None)
@given(steps=STEPS, cells=st.sampled_from([0, 2, 1000]), folds=st.booleans())
def test_windows_of_one_size(
    size: int, every: int, lateness: int, accumulating: bool, steps: list[Step], cells: int, folds: bool
) -> None:
    """The list of messages, and a fold that makes the same list: their cells are stored in different ways."""
    window = ps.Windows.hopping(
        size,
        every,
        fold=(list, lambda values, value: [*values, value]) if folds else None,
        allowed_lateness_ms=lateness,
        accumulating=accumulating,
        late_to=ps.SystemStream("m", "late"),
    )
    with limited(cells):
        assert run(window, steps) == expected(size, every, lateness, steps, accumulating=accumulating)


def expected_sessions(gap: int, lateness: int, steps: list[Step]) -> list[tuple[list[Any], list[Any]]]:
    """The sessions of each key as lists of messages, which are put together again for each message."""
    found: list[tuple[list[Any], list[Any]]] = []
    sessions: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    watermark, number = 0, 0
    for step, (messages, moved, _, _) in enumerate([*steps, ([], 2**63, 0, False)]):
        late, too_late, panes = watermark if step else -(2**63), [], []
        for key, time in messages:
            number += 1
            met = [s for s in sessions[key] if min(s["times"]) < time + gap and time < max(s["times"]) + gap]
            times = [time, *(t for s in met for t in s["times"])]
            if max(times) + gap + lateness <= late:
                too_late.append(number)
                continue
            sessions[key] = [s for s in sessions[key] if s not in met]
            sessions[key].append(
                {
                    "times": times,
                    "values": sorted([number, *(v for s in met for v in s["values"])]),
                    "panes": max([s["panes"] for s in met], default=0),
                    "new": True,
                    "fired": max(times) + gap <= late,
                }
            )
        watermark += moved
        for key, some in sessions.items():
            for session in list(some):
                start, end = min(session["times"]), max(session["times"]) + gap
                firing = None
                if session["fired"] and session["new"]:
                    firing = "late"
                elif not session["fired"] and end <= watermark:
                    firing, session["fired"] = "on-time", True
                if firing is not None:
                    panes.append(repr([key, [start, end], session["values"], firing, session["panes"]]))
                    session["panes"] += 1
                session["new"] = False
                if session["fired"] and end + lateness <= watermark:
                    some.remove(session)
        found.append((sorted(panes), too_late))
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("lateness", [0, 15])
@pytest.mark.parametrize("merges", [True, False])
@settings(deadline=None)
@given(steps=STEPS)
def test_sessions(lateness: int, merges: bool, steps: list[Step]) -> None:
    fold: tuple[Any, ...] = (list, lambda values, value: sorted([*values, value]))
    if merges:
        fold = (*fold, lambda first, second: sorted(first + second))
    window = ps.Windows.session(7, fold=fold, allowed_lateness_ms=lateness, late_to=ps.SystemStream("m", "late"))
    assert run(window, steps) == expected_sessions(7, lateness, steps)


def expected_sliding(size: int, steps: list[Step]) -> list[tuple[list[Any], list[Any]]]:
    """Each pane looks for its messages among all of them."""
    watermarks = [0]
    for _, moved, *_ in steps:
        watermarks.append(watermarks[-1] + moved)
    watermarks.append(2**63 - 1)
    came: list[tuple[int, str | None, int, int]] = []
    too_late: list[list[int]] = [[] for _ in watermarks[1:]]
    ends: set[tuple[str | None, int]] = set()
    for step, (messages, *_) in enumerate(steps):
        late = watermarks[step] if step else -(2**63)
        for key, time in messages:
            number = len(came) + sum(map(len, too_late)) + 1
            if time + size <= late:
                too_late[step].append(number)
                continue
            came.append((time, key, number, step))
            if time >= late:
                ends.add((key, time))
    panes: list[list[str]] = [[] for _ in watermarks[1:]]
    for key, end in ends:
        fires = next(step for step, mark in enumerate(watermarks[1:]) if mark > end)
        span = [
            n
            for t, k, n, step in sorted(came, key=lambda m: (m[0], m[2]))
            if k == key and end - size < t <= end and step <= fires
        ]
        panes[fires].append(repr([key, [end + 1 - size, end + 1], span, "on-time", 0]))
    return [(sorted(some), late) for some, late in zip(panes, too_late, strict=True)]


@given(steps=STEPS, size=st.sampled_from([1, 7, 30]), folds=st.booleans(), cells=st.sampled_from([0, 1000]))
@settings(deadline=None)
def test_sliding_windows(steps: list[Step], size: int, folds: bool, cells: int) -> None:
    fold = (list, lambda values, value: [*values, value]) if folds else None
    with limited(cells):
        assert run(
            ps.Windows.sliding(size, fold=fold, late_to=ps.SystemStream("m", "late")), steps
        ) == expected_sliding(size, steps)


def expected_running(size: int, steps: list[Step]) -> list[tuple[list[Any], list[Any]]]:
    """Each message looks for those before it among all of them."""
    came: list[tuple[int, str | None, int]] = []
    found: list[tuple[list[Any], list[Any]]] = []
    number, late = 0, -(2**63)
    watermark = 0
    for messages, moved, *_ in steps:
        panes, too_late = [], []
        for key, time in messages:
            number += 1
            if time + size <= late:
                too_late.append(number)
                continue
            came.append((time, key, number))
            span = [n for t, k, n in sorted(came, key=lambda m: (m[0], m[2])) if k == key and time - size < t <= time]
            panes.append(repr([key, [time + 1 - size, time + 1], span, "each", 0]))
        found.append((sorted(panes), too_late))
        watermark += moved
        late = watermark
    return [*found, ([], [])]


@given(steps=STEPS, size=st.sampled_from([1, 7, 30]), folds=st.booleans(), cells=st.sampled_from([0, 3, 1000]))
@settings(deadline=None)
def test_sliding_windows_that_emit_with_each_message(steps: list[Step], size: int, folds: bool, cells: int) -> None:
    fold = (list, lambda values, value: [*values, value]) if folds else None
    window = ps.Windows.sliding(size, emit="each", fold=fold, late_to=ps.SystemStream("m", "late"))
    with limited(cells):
        assert run(window, steps) == expected_running(size, steps)


@given(steps=STEPS)
@settings(deadline=None)
def test_windows_that_count(steps: list[Step]) -> None:
    by_key: dict[str | None, list[int]] = defaultdict(list)
    panes: list[list[str]] = []
    number = 0
    for messages, *_ in steps:
        panes.append([])
        for key, _ in messages:
            number += 1
            by_key[key].append(number)
            if len(by_key[key]) == 3:
                panes[-1].append(repr([key, None, by_key.pop(key), "on-time", 0]))
    panes.append([repr([key, None, left, "on-time", 0]) for key, left in by_key.items()])
    assert run(ps.Windows.count(3), steps) == [(sorted(some), []) for some in panes]


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
