"""A job whose operators hold messages back until the watermark has passed them, on drivers of this process.

What it must come to is simple: every message comes out once, with its event time, and says at which operators it was
late. An operator behind another one holds what the first one let go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.api.requests import StartpointOldest
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch, Due
from penstock.graph.specs import OperatorSpec
from penstock.job.paths import JobPaths
from penstock.runtime.messages.columns import MessageColumns, Target
from penstock.runtime.operators.base import Firing, KeyValue, Node, Operator, StageContext
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import WithState
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.world.world import World

TASKS = 2
AT_MOST = 5
"""The most messages that an operator lets go in an attempt beyond its output watermark."""
NOW = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSpec(OperatorSpec):
    """Holds messages until the watermark passes them."""

    operator = f"{__name__}:Hold"
    needs_task = True

    @property
    def uses_time(self) -> bool:
        return True


class Hold(Operator[HoldSpec]):
    @property
    def time_stores(self) -> tuple[str, ...]:
        return (self.spec.stores[0],)

    def next_due(self, store: KeyValue) -> Due:
        oldest = next(iter(store.all()), None)
        return (None if oldest is None else int(oldest[0].split()[0]) - 2**62), None

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return HoldNode(self.spec, stage, downstream)


class HoldNode(Node):
    """Keeps [key, value] under the event time. What is late goes on at once."""

    batches: list[Batch] = []
    """The batches of all runs, for tests to look at."""

    def __init__(self, spec: HoldSpec, stage: StageContext, downstream: Target) -> None:
        super().__init__(self._hold, stage.position)
        self._id = spec.id
        self._store = stage.stores[spec.stores[0]]
        self._position = stage.position
        self._downstream = downstream

    def begin(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._late = batch.late_watermark(self._id)

    def _hold(self, columns: MessageColumns) -> None:
        for row, key, value in zip(columns.rows, columns.keys, columns.values, strict=True):
            time = self._position.page.timestamps[row]
            if time < self._late:
                self._position.row = row
                self._downstream.push(key, {**value, "late": [*value["late"], self._id]})
            else:
                self._store.put(f"{time + 2**62:020d} {value['n']}", [key, value])

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        firing, output = batch.firing_watermark(self._id), batch.output_watermark(self._id)
        for fired, (place, (key, value)) in enumerate(list(self._store.all())):
            time = int(place.split()[0]) - 2**62
            if time > firing or (time > output and fired >= AT_MOST):
                return
            yield Firing(None, time, "let go", partial(self._let_go, place, key, value))

    def _let_go(self, place: str, key: Any, value: Any) -> None:
        self._store.delete(place)
        self._downstream.push(key, value)


def hold(stream: ps.MessageStream[Any], op_id: str) -> ps.MessageStream[Any]:
    """A stand-in for a method of MessageStream."""
    stream._declared.store(f"{op_id}.hold", None, None)
    return stream._next("hold", op_id, lambda i: HoldSpec(id=i, stores=(f"{i}.hold",), **stream._same()))


@dataclass
class TimedWorld(World):
    """The job as the fields say, and what was put into its inputs."""

    folder: Path
    apart: bool = True
    """True if the second operator is in another stage than the first one."""
    second: bool = True
    through: bool = False
    """True if messages go through durable intermediate streams, not through Spark's shuffle."""
    inputs: dict[str, ps.WatermarkPolicy | None] = field(default_factory=lambda: {"m.in": None})
    config: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        streams = ("in", "other", "out", "by-key", "by-n")
        super().__init__(self.folder, "timed", streams, TASKS)
        self.clock: SettableClock = SettableClock(NOW)
        self.given: dict[int, int] = {}
        """Number of a message -> its event time."""
        HoldNode.batches.clear()

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("timed")
        first, *others = [
            app.input(name, timestamp=lambda v: v["t"], watermark=policy, id=name.partition(".")[2])
            for name, policy in self.inputs.items()
        ]
        stream = first.merge(*others, id="all") if others else first
        by_key, by_n = ("m.by-key", "m.by-n") if self.through else (None, None)
        held = hold(stream.partition_by(lambda v: v["k"], through=by_key, id="by-key"), "one")
        if self.apart:
            held = held.partition_by(lambda v: str(v["n"] % 3), through=by_n, id="by-n")
        else:
            held = held.map(dict, id="copy")
        if self.second:
            held = hold(held, "two")
        held.send_to(app.output("m.out"), id="out")
        return app

    def driver(self, **given: Any) -> InProcessDriver:
        keys = {"job.batch.max.messages": 4, "job.batch.interval.ms": 1000, "systems.m.samza.factory": "memory"}
        return self.make(self.app().graph(), {**keys, **self.config}, **given)

    def put(self, *times: int, stream: str = "in", partition: int | None = None) -> None:
        """Append a message for each event time, to one partition after the other."""
        for time in times:
            number = len(self.given)
            value = {"n": number, "t": time, "k": f"k{number % 5}", "late": []}
            self.append(
                stream, number % TASKS if partition is None else partition, (NOW, None, json.dumps(value).encode())
            )
            self.given[number] = time

    def output(self) -> list[tuple[int, int, list[str]]]:
        """Number, timestamp, and where it was late, of all that came out."""
        found = ((timestamp, json.loads(data or b"")) for timestamp, _, data, *_ in self.records("out"))
        return sorted((value["n"], timestamp, value["late"]) for timestamp, value in found)

    def came(self) -> dict[int, list[str]]:
        """The messages that came out, and where each was late. With the event time of each."""
        output = self.output()
        assert all(timestamp == self.given[number] for number, timestamp, _ in output)
        return {number: late for number, _, late in output}


def reached(watermarks: Mapping[str, int]) -> dict[str, int]:
    """The watermarks but for the output's, which nothing waits for: it is held back while the last ones fire."""
    return {op: each for op, each in watermarks.items() if op != "out"}


def ask(world: TimedWorld, with_state: WithState) -> None:
    manager = StartpointManager(world.objects, JobPaths("timed", "1"), 10**9, world.clock.now_ms)
    for partition in range(TASKS):
        startpoint = StartpointOldest(creation_timestamp=NOW)
        manager.write_startpoint(SystemStreamPartition("m", "in", partition), startpoint, with_state=with_state)


def steps(driver: InProcessDriver, limit: int = 200) -> int:
    """Steps until nothing is left to do now; how many batches that were. The clock passes one idle interval."""
    before = driver.loop.boundary.batch
    for _ in range(limit):
        batch = driver.loop.boundary.batch, driver.loop.epoch
        if driver.loop.step() or (driver.loop.boundary.batch, driver.loop.epoch) == batch:
            return driver.loop.boundary.batch - before
    raise AssertionError(f"more than {limit} batches")


def steps_and_commit(driver: InProcessDriver) -> None:
    steps(driver)
    driver.loop.commit()
