"""Joins of a whole job: watermarks from its inputs, an exchange, commits, kills and restarts; against a nested loop
over all messages."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples

BOUND = 15
"""The most by which a message may be earlier than an earlier one of its partition."""
Event = tuple[str, int, str, int, int]
"""Stream, partition, key, time, number."""
Result = tuple[str, int | None, int | None, int]
"""Key, number of the left message, number of the right one, timestamp."""


def events_of(rng: random.Random, number: int, partitions: int) -> list[Event]:
    """Messages of both streams, none of them late."""
    reached: Counter[tuple[str, int]] = Counter()
    found = []
    for n in range(number):
        stream, partition = rng.choice(["left", "right"]), rng.randrange(partitions)
        time = max(0, reached[stream, partition] + rng.randint(-BOUND, 10))
        reached[stream, partition] = max(reached[stream, partition], time)
        found.append((stream, partition, rng.choice("abc"), time, n))
    return found


def expected(events: list[Event], before: int, after: int, kind: str) -> Counter[Result]:
    """Every left message with every right one."""
    found: Counter[Result] = Counter()
    joined = set()
    lefts, rights = ([event for event in events if event[0] == side] for side in ("left", "right"))
    for _, _, key, t, n in lefts:
        for _, _, other_key, u, m in rights:
            if key == other_key and t - before <= u <= t + after:
                found[key, n, m, max(t, u)] += 1
                joined |= {n, m}
    if kind in ("left", "outer"):
        found.update((key, n, None, t + after) for _, _, key, t, n in lefts if n not in joined)
    if kind in ("right", "outer"):
        found.update((key, None, n, u + before) for _, _, key, u, n in rights if n not in joined)
    return found


def application(within: tuple[int, int], kind: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("joins")
    policy = ps.BoundedOutOfOrderness(BOUND)
    left, right = (
        app.input(f"m.{name}", timestamp=lambda event: int(event["time"]), watermark=policy)
        .partition_by(lambda event: event["key"])
        .map(lambda event: event["n"])
        for name in ("left", "right")
    )
    app.output("m.late")
    pairs = left.join(
        right, lambda n, m: [n, m], within_ms=within, kind=kind, id="j", late_to=ps.SystemStream("m", "late")
    )
    pairs.send_to(app.output("m.out"))
    return app


def run(app: ps.StreamApplication, events: list[Event], rng: random.Random, partitions: int) -> Counter[Result]:
    """The job's output. Results of a batch that was repeated after a crash are counted once."""
    runner, left = TestRunner(app, partitions=partitions), list(events)
    crashed = False
    while left:
        for stream, partition, key, time, n in left[: (size := rng.randint(1, 10))]:
            runner.input(f"m.{stream}", [{"key": key, "time": time, "n": n}], partition=partition)
        left = left[size:]
        runner.run(batch_messages=rng.choice([None, 3]))
        if rng.random() < 0.3:
            runner.commit()
        if rng.random() < 0.2:
            runner.crash().restore()
            crashed = True
    runner.end_inputs()
    found = Counter((message.key, *message.value, message.timestamp) for message in runner.output("m.out"))
    assert runner.output("m.late") == []
    assert runner.store("j.join") == {}
    runner.close()
    return Counter(set(found)) if crashed else found


@examples(0.6)
@given(st.sampled_from(["inner", "left", "right", "outer"]), st.integers(0, 2**32))
def test_all_messages_of_the_span(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    partitions = rng.randint(1, 3)
    events = events_of(rng, rng.randrange(60), partitions)
    within = (rng.randrange(12), rng.randrange(12))
    found = run(application(within, kind), events, rng, partitions)
    assert found == expected(events, *within, kind)
