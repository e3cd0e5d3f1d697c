"""Temporal joins against a plain program over all messages: in any order, lateness and batches, with attempts that are
discarded, restarts, kills and any number of tasks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.runtime.operators import event_time, tables
from penstock.testing import TestRunner
from tests.support.oracles.stage_batches import LATE, OUT, Message, StageBatches
from tests.support.tools.profiles import examples

Event = tuple[str, str, int]
"""The kind ("version", "delete" or "read"), the key and the time."""
Step = tuple[list[Event], int, int, bool]
"""The messages of a batch, how far the watermark moves, attempts that are discarded, and whether a restart follows."""
EVENTS = st.tuples(st.sampled_from(["version", "delete", "read", "read"]), st.sampled_from("ab"), st.integers(0, 40))
STEPS = st.lists(
    st.tuples(st.lists(EVENTS, max_size=8), st.integers(0, 20), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=8,
)


def as_of(versions: Iterable[tuple[int, Any]], time: int) -> Any:
    """The value of the latest version up to the time; of several at the same time the last one that came."""
    found = [(at, number, value) for number, (at, value) in enumerate(versions) if at <= time]
    return max(found)[2] if found else None


def stage(history_ms: int) -> StageBatches:
    app = ps.StreamApplication("a")
    out = app.output(OUT)
    late = app.output(LATE)
    table = app.table("t", history_ms=history_ms)
    events = app.input("m.in").partition_by(lambda message: message.key, envelope=True)
    events.filter(lambda event: event[0] == "read").join_table(
        table, lambda event, found: [event[1], found], kind="left", as_of=True, late_to=late, id="j"
    ).send_to(out)
    versions = events.filter(lambda event: event[0] != "read")
    versions.flat_map(lambda event: [event[1] if event[0] == "version" else None]).send_to(table, id="w")
    return StageBatches(app, "j", others=("w",))


@given(STEPS, st.integers(0, 10))
def test_each_message_sees_the_version_of_its_time(steps: list[Step], history_ms: int) -> None:
    job, watermark = stage(history_ms), 0
    versions: dict[str, list[tuple[int, Any]]] = {"a": [], "b": []}
    waiting: list[tuple[int, str, int]] = []
    number = 0
    job.run([], 0)
    for events, moved, discards, restart in [*steps, ([], 1000, 0, False)]:
        late_watermark, watermark, late = watermark, watermark + moved, []
        batch = []
        for kind, key, time in events:
            number += 1
            batch.append(Message(key, [kind, number], time))
            if kind != "read":
                if time >= late_watermark - history_ms:
                    versions[key].append((time, number if kind == "version" else None))
            elif time < late_watermark:
                late.append(number)
            else:
                waiting.append((time, key, number))
        sent = job.run(batch, watermark, discards=discards)
        assert job.failed is None
        due = sorted(each for each in waiting if each[0] < watermark)
        waiting = [each for each in waiting if each[0] >= watermark]
        expected = [(key, [n, as_of(versions[key], time)], time) for time, key, n in due]
        assert sent.get(OUT, []) == expected
        assert [value[1] for _, value, _ in sent.get(LATE, [])] == late
        if restart:
            job.restart()
    job.run([], watermark + 1000)  # what the watermark before has made superfluous is dropped
    assert set(job.entries("j.join")) <= {b"n"}
    assert not job.entries("w.timers")
    assert len(job.entries("t")) == sum(as_of(versions[key], 10**6) is not None for key in "ab"), "the last ones stay"
    job.close()


def test_versions_are_kept_for_what_still_waits() -> None:
    job = stage(5)
    job.run([Message("a", ["version", n], n) for n in range(0, 50, 10)], 20)
    assert len(job.entries("t")) == 5
    job.run([], 30)
    assert len(job.entries("t")) == 4, "kept from 15: that of 10 is valid there"
    job.run([], 1000)
    assert len(job.entries("t")) == 3, "kept from 25"
    job.run([], 1001)
    assert len(job.entries("t")) == 1
    job.close()


def events_of(rng: random.Random, number: int, bound: int, tasks: int) -> list[tuple[str, int, list[Any]]]:
    """(stream, partition, message): none is late, and no two versions of a key have the same time."""
    reached: dict[tuple[str, int], int] = {}
    used, found = set(), []
    for n in range(number):
        at = rng.choice(["versions", "reads"]), rng.randrange(tasks)
        time = max(0, reached.get(at, 0) + rng.randint(-bound, 10))
        key = rng.choice("abc")
        if at[0] == "versions":
            if (key, time) in used:
                continue
            used.add((key, time))
        reached[at] = max(reached.get(at, 0), time)
        found.append((*at, [key, time, None if at[0] == "versions" and rng.random() < 0.2 else n]))
    return found


def application(bound: int, *, windowed: bool) -> ps.StreamApplication:
    app = ps.StreamApplication("temporal")
    policy = ps.BoundedOutOfOrderness(bound)
    table = app.table("t", history_ms=0)
    reads = app.input("m.reads", timestamp=lambda event: int(event[1]), watermark=policy)
    joined = reads.partition_by(lambda event: event[0]).join_table(
        table, lambda event, found: [*event, found], kind="left", as_of=True, id="j"
    )
    joined.send_to(app.output("m.out"))
    if windowed:
        counts = joined.window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="w")
        counts.map(lambda pane: [pane.window.start_ms, pane.message["n"]]).send_to(app.output("m.counts"))
    # It is declared behind the join that needs it.
    versions = app.input("m.versions", timestamp=lambda event: int(event[1]), watermark=policy)
    versions.partition_by(lambda event: event[0]).map(lambda event: event[2]).send_to(table, id="versions")
    return app


def run(seed: int, *, windowed: bool = False) -> tuple[list[tuple[str, int, list[Any]]], TestRunner]:
    rng = random.Random(seed)
    bound, tasks = rng.randrange(20), rng.randint(1, 3)
    events = events_of(rng, rng.randrange(60), bound, tasks)
    runner, left = TestRunner(application(bound, windowed=windowed), partitions=tasks), list(events)
    while left:
        for stream, partition, message in left[: (size := rng.randint(1, 10))]:
            runner.input(f"m.{stream}", [message], partition=partition)
        left = left[size:]
        runner.run(batch_messages=rng.choice([None, 3]))
        if rng.random() < 0.3:
            runner.commit()
        if rng.random() < 0.2:
            runner.crash().restore()
    return events, runner.end_inputs()


def check(events: list[tuple[str, int, list[Any]]], runner: TestRunner) -> dict[Any, Any]:
    versions: dict[str, list[tuple[int, Any]]] = {"a": [], "b": [], "c": []}
    for stream, _, (key, time, n) in events:
        if stream == "versions":
            versions[key].append((time, n))
    expected = {(key, time, n): as_of(versions[key], time) for stream, _, (key, time, n) in events if stream == "reads"}
    found: dict[Any, Any] = {}
    for message in runner.output("m.out"):
        key, time, n, value = message.value
        assert (message.key, message.timestamp) == (key, time)
        assert found.setdefault((key, time, n), value) == value, "what comes again is the same"
    assert found == expected
    return expected


@examples(0.2)
@given(st.integers(0, 2**32))
def test_a_whole_job(seed: int) -> None:
    events, runner = run(seed)
    check(events, runner)
    runner.close()


@examples(0.2)
@given(st.integers(0, 2**32))
def test_joins_that_take_several_batches(seed: int) -> None:
    """At most two messages are joined in a batch; what follows in the stage waits for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_time, "_AT_MOST", 2)
        patch.setattr(tables, "_AT_MOST", 2)
        events, runner = run(seed, windowed=True)
    expected = check(events, runner)
    counts: dict[Any, int] = {}
    for key, time, _ in expected:
        counts[key, time // 10 * 10] = counts.get((key, time // 10 * 10), 0) + 1
    assert {(m.key, m.value[0]): m.value[1] for m in runner.output("m.counts")} == counts
    runner.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("apart", [False, True])
def test_versions_that_a_window_emits(apart: bool) -> None:
    """They come at the end of the input, in the same batch and before the messages that need them are joined."""
    app = ps.StreamApplication("busy")
    table = app.table("t", history_ms=0)
    events = app.input("m.in", timestamp=lambda event: int(event[1])).partition_by(lambda event: event[0])
    events.join_table(table, lambda event, found: [*event, found], kind="left", as_of=True).send_to(app.output("m.out"))
    panes = events.window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="w")
    counts = panes.map(lambda pane: pane.message["n"])
    (counts.partition_by(lambda message: message.key, envelope=True) if apart else counts).send_to(table)
    runner = TestRunner(app, partitions=2)
    rng = random.Random(5)
    events_at = sorted((rng.randrange(300), rng.choice("ab")) for _ in range(150))
    for number, (time, key) in enumerate(events_at):
        runner.input("m.in", [[key, time]], partition=number % 2)
        if number % 7 == 0:
            runner.run()
    runner.end_inputs()
    for message in runner.output("m.out"):
        key, time, found = message.value
        ends = [end for end in range(10, 310, 10) if end - 1 <= time]
        counts_before = [sum(k == key and end - 10 <= at < end for at, k in events_at) for end in ends]
        assert found == next((n for n in reversed(counts_before) if n), None), message.value
    assert len(runner.output("m.out")) == 150
    runner.close()
