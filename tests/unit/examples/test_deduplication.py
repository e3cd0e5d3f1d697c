"""Events that are delivered again, now and after the day for which they are remembered."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from examples.jobs.deduplication import app
from penstock.testing import TestRunner

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_each_event_passes_once_in_a_day() -> None:
    batches = deliveries(seed=7)
    runner = TestRunner(app, partitions=3)
    passed = Counter[str]()
    for (hours, events), new in zip(batches, expected(batches), strict=True):
        runner.advance_time(hours * HOUR_MS).input("local.events", events).run(batch_messages=40)
        passed.update(new)
        assert Counter(message.value["id"] for message in runner.output("local.events-once")) == passed
    everything = [event["id"] for _, events in batches for event in events]
    assert len(set(everything)) < passed.total() < len(everything) - 200


def test_what_was_seen_survives_a_crash() -> None:
    events = [{"id": f"e{n % 150}", "kind": "paid"} for n in range(300)]
    runner = TestRunner(app).input("local.events", events[:200]).run().commit().crash().restore()
    runner.input("local.events", events[200:]).run()
    assert Counter(message.key for message in runner.output("local.events-once")) == {f"e{n}": 1 for n in range(150)}


def deliveries(seed: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """Ten batches: the hours since the one before, and events of which many came before."""
    chance = random.Random(seed)
    ids = [f"e{n}" for n in range(200)]
    return [
        (chance.choice([1, 5, 11]), [{"id": chance.choice(ids), "kind": "paid"} for _ in range(80)]) for _ in range(10)
    ]


def expected(batches: list[tuple[int, list[dict[str, Any]]]]) -> list[dict[str, int]]:
    """The ids that pass in each batch: those whose last passage was a day ago or longer."""
    passages: dict[str, list[int]] = {}
    now_ms, found = 0, []
    for hours, events in batches:
        now_ms += hours * HOUR_MS
        new = {e["id"] for e in events if all(at_ms + DAY_MS <= now_ms for at_ms in passages.get(e["id"], []))}
        for each in new:
            passages.setdefault(each, []).append(now_ms)
        found.append(dict.fromkeys(new, 1))
    return found
