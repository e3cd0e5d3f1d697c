"""Every entry of every kind of store is in the task that owns the key which is found in it."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

import penstock as ps
from penstock.repartition.placement import (
    ByKey,
    Placement,
    StayingPlacement,
    TaskCountChange,
    UnknownPlacement,
    placements,
)
from penstock.system.partitioner import partition_of
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import steps
from tests.support.world.world import World

TASKS = 3
KEYS = [f"key-{number}" for number in range(12)] + ["", "\x00", "a\x00\x01b", "z" * 300]


class Timed(ps.StreamTask):
    """Keeps state of many forms, and timers that fire late."""

    def init(self, context: ps.TaskContext) -> None:
        self.timers = context
        self.counts: ps.KeyValueStore[str, int] = context.store("counts")
        self.seen = context.list_state("seen")
        self.worst = context.map_state("worst")

    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        self.counts[envelope.key] = self.counts.get(envelope.key, 0) + 1
        self.seen.append(envelope.value["n"])
        self.worst.put(envelope.value["n"] % 3, envelope.value["n"])
        self.timers.schedule(envelope.key, envelope.value["t"] + 500_000, name="late")

    def on_timer(self, timer: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        collector.emit(key=timer.key, value="fired")


def app() -> ps.StreamApplication:
    app = ps.StreamApplication("every")
    both = []
    for stream in ("left", "right"):
        events = app.input(f"m.{stream}", timestamp=lambda value: value["t"])
        both.append(events.partition_by(lambda value: value["k"], id=f"by-key-{stream}"))
    left, right = both
    app.store("counts", value=ps.Long())
    app.list_state("seen", value=ps.Long())
    app.map_state("worst", map_key=ps.Long(), value=ps.Long())
    left.process(Timed, stores=["counts", "seen", "worst"], timers=ps.String(), id="timed")
    count = {"n": ps.Count()}
    shapes = {
        "tumbling": ps.Windows.tumbling(60_000, aggregates=count),
        "lists": ps.Windows.tumbling(60_000),
        "kept": ps.Windows.hopping(60_000, 30_000, aggregates=count, allowed_lateness_ms=600_000),
        "sessions": ps.Windows.session(5_000, aggregates=count),
        "sliding": ps.Windows.sliding(60_000, aggregates=count),
        "each": ps.Windows.sliding(60_000, emit="each", aggregates=count),
        "counting": ps.Windows.count(7, aggregates=count),
    }
    for name, window in shapes.items():
        left.window(window, id=name)
    left.join(right, lambda a, b: [a, b], within_ms=20_000, kind="outer", id="every")
    left.join(right, lambda a, b: [a, b], within_ms=20_000, kind="outer", keep="newest", id="newest")
    table = app.table("table")
    right.send_to(table)
    history = app.table("history", history_ms=1_000_000)
    right.send_to(history, id="to-history")
    left.join_table(history, lambda a, b: [a, b], as_of=True, kind="left", id="as-of")
    left.deduplicate("1h", id="once")
    left.deduplicate("1h", by=lambda value: value["n"] % 4, id="once-by")
    left.reduce(lambda a, b: b, id="reduced")
    left.aggregate({"n": ps.Count()}, id="aggregated")
    return app


def run(world: World, messages: int) -> tuple[InProcessDriver, Counter[str]]:
    graph = app().graph()
    driver = world.make(graph, {"systems.m.samza.factory": "memory", "job.batch.max.messages": 60})
    driver.loop.start()
    chance = random.Random(1)
    for number in range(messages):
        value = {"k": chance.choice(KEYS), "n": number, "t": 1_000_000 + 200 * number}
        world.append(chance.choice(["left", "right"]), number % TASKS, (0, None, json.dumps(value).encode()))
    steps(driver)
    entries = Counter[str]()
    found = placements(graph, TaskCountChange(TASKS, 8, {"m.left": (TASKS, TASKS), "m.right": (TASKS, TASKS)}))
    for spec in graph.written_stores:
        for task in range(TASKS):
            engine = driver.fleet.container_of(task).tasks[task].engine(spec.name)
            entries[spec.name] += _check(spec, found[spec.name], task, list(engine.scan(None, None)))
    return driver, entries


def _check(spec: Any, place: Placement, task: int, entries: list[tuple[bytes, bytes]]) -> int:
    assert isinstance(place, ByKey), spec.name
    own = [key for key, _ in entries if key not in place.merges and not (spec.ttl and key.startswith(b"\xffTTL"))]
    assert {partition_of(place.find(key), TASKS) for key in own} <= {task}, spec.name
    return len(own)


world = fixture_of(World, "every", ("left", "right"), TASKS)


def test_entries_are_where_their_keys_belong(world: World) -> None:
    driver, entries = run(world, 400)
    driver.close()
    assert len(entries) == 21
    assert not [store for store, count in entries.items() if count == 0]


class Keeps(ps.StreamTask):
    def process(self, envelope: Any, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        pass


def kept(*streams: str, key: ps.Serde[Any] | None = None, exchange: bool = False) -> ps.StreamApplication:
    """An application that keeps something of the merged inputs in the store `own`."""
    app = ps.StreamApplication("kept")
    app.store("own", key=key)
    first, *others = (app.input(f"m.{stream}", key=key) for stream in streams)
    merged: Any = first.merge(*others) if others else first
    if exchange:
        merged = merged.partition_by(lambda value: value["k"], key=key)
    merged.process(Keeps, stores=["own"], id="keep")
    return app


GROWN = TaskCountChange(2, 4, {"m.left": (2, 4), "m.right": (4, 4)})
STILL = TaskCountChange(2, 8, {"m.left": (2, 2), "m.right": (2, 2)})


@pytest.mark.parametrize(
    ("app", "change", "rule", "expected"),
    [
        (kept("left"), STILL, None, StayingPlacement),
        (kept("left"), STILL, "key", ByKey),
        (kept("left"), GROWN, None, UnknownPlacement),
        (kept("left"), GROWN, "key", ByKey),
        (kept("left"), GROWN, lambda key, value: key, ByKey),
        (kept("left"), GROWN, "stay", StayingPlacement),
        (kept("left", "right"), GROWN, None, UnknownPlacement),
        (kept("left", "right"), GROWN, "key", UnknownPlacement),
        (kept("left", "right"), STILL, None, StayingPlacement),
        (kept("left", "right", exchange=True), GROWN, None, ByKey),
        (kept("left", key=ps.Double(), exchange=True), STILL, None, ByKey),
        (kept("left", key=ps.Long(), exchange=True), STILL, None, ByKey),
        (kept("left", key=ps.Json(), exchange=True), STILL, None, ByKey),
        (kept("left", key=ps.Tuple(ps.String(), ps.Long()), exchange=True), STILL, None, ByKey),
    ],
)
def test_placements(app: ps.StreamApplication, change: TaskCountChange, rule: Any, expected: type[Placement]) -> None:
    rules = {} if rule is None else {"own": rule}
    found = placements(app.graph(), change, rules)["own"]
    assert isinstance(found, expected), found
    if isinstance(found, ByKey) and change is GROWN and len(app.graph().inputs) == 1:
        assert (found.before, found.after) == (2, 4)
