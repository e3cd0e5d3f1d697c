"""A job that adds up the values of keys, on drivers and containers of this process, and what it must come to."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_store
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver

TASKS = 3
KEYS = ("a", "b", "c", "d", "e")


class Sum(ps.StreamTask):
    """Adds up the values of each key; asks for a commit or a shutdown where the value is 100 or 200."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")
        self.seen = context.metrics.new_counter("sums", "seen")
        self.largest = context.metrics.new_gauge("sums", "largest")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value < 0:
            raise ValueError("negative")
        if envelope.value == 100:
            coordinator.commit()
        if envelope.value == 200:
            coordinator.shutdown()
        self.seen.inc()
        self.largest.set(max(self.largest.value, envelope.value))
        total = (self.store.get(envelope.key) or 0) + envelope.value
        self.store.put(envelope.key, total)
        collector.emit(key=envelope.key, value=total)


class World:
    """What outlives a driver: the object store, the streams, the clock. And what was put into the streams."""

    def __init__(self, folder: Path, system: MemorySystem | None = None, through: str | None = None) -> None:
        """`through` is a durable intermediate stream that all messages go through."""
        self.app = ps.StreamApplication("sums")
        self.app.store("sums", key=ps.String(), value=ps.Integer())
        source = self.app.input("m.events", key=ps.String(), value=ps.Integer())
        source.partition_by(lambda envelope: envelope.key, through=through, envelope=True).process(
            Sum, stores=["sums"], id="sum"
        ).send_to(self.app.output("m.sums", key=ps.String(), value=ps.Integer()))
        self.root = f"memory://{uuid.uuid4().hex}"
        self.objects = open_store(self.root)
        self.system = system or MemorySystem("m")
        for stream in ("events", "sums"):
            self.system.admin().create_stream(stream, TASKS)
        self.folder = folder
        self.clock = SettableClock()
        self.given: list[tuple[str, int]] = []
        self.drivers: list[InProcessDriver] = []

    def driver(self, containers: int = 2, **config: object) -> InProcessDriver:
        """Another driver of the job."""
        overrides = {
            "job.name": "sums",
            "job.root": self.root,
            "job.logged.store.base.dir": str(self.folder),
            "job.batch.max.messages": 4,
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 1,
            "task.commit.ms": 0,
            "stores.sums.factory": "memory",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        systems = {"m": self.system, "local": MemorySystem("local")}
        settings = load_config(overrides=overrides, environ={})
        graph = self.app.graph()
        driver = InProcessDriver(graph, settings, self.objects, systems, containers=containers, clock=self.clock)
        self.drivers.append(driver)
        return driver

    def put(self, *values: int) -> None:
        """Append a message for each value, its key one after the other."""
        writer = self.system.writer(None)
        for value in values:
            key = KEYS[len(self.given) % len(KEYS)]
            ssp = ps.SystemStreamPartition("m", "events", len(self.given) % TASKS)
            writer.append(ssp, [(0, ps.String().to_bytes(key), ps.Integer().to_bytes(value))])
            self.given.append((key, value))

    @property
    def sums(self) -> dict[str, int]:
        """The oracle."""
        totals: Counter[str] = Counter()
        for key, value in self.given:
            totals[key] += value
        return dict(totals)

    def output(self) -> list[tuple[str, int]]:
        """Everything in the output."""
        found = []
        for partition, ends in self.system.admin().offsets("sums").items():
            ssp = ps.SystemStreamPartition("m", "sums", partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                found += [(ps.String().from_bytes(k or b""), ps.Integer().from_bytes(v or b"")) for _, _, k, v in chunk]
        return found

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return CheckpointLog(self.objects, JobPaths("sums", "1")).read().checkpoints

    def close(self) -> None:
        """Close every driver."""
        for driver in self.drivers:
            driver.close()
        forget_memory_store(self.root)

    def check(self, driver: InProcessDriver, *, exactly_once: bool = True) -> None:
        """State and output are those of the oracle."""
        assert state(driver) == self.sums
        running: Counter[str] = Counter()
        expected = []
        for key, value in self.given:
            running[key] += value
            expected.append((key, running[key]))
        if exactly_once:
            assert Counter(self.output()) == Counter(expected)
        else:
            assert set(self.output()) >= set(expected)
            assert dict(sorted(self.output(), key=lambda pair: pair[1])) == self.sums


def state(driver: InProcessDriver) -> dict[str, int]:
    """What the stores of all tasks hold."""
    found: dict[str, int] = {}
    for task in range(TASKS):
        engine = driver.fleet.container_of(task).tasks[task].engine("sums")
        found |= {ps.String().from_bytes(k): ps.Integer().from_bytes(v) for k, v in engine.scan(None, None)}
    return found


def drain(driver: InProcessDriver) -> None:
    """Steps until everything is read."""
    while any(at_end(driver)) or driver.loop.boundary.left:
        driver.loop.step()


def at_end(driver: InProcessDriver) -> list[bool]:
    """Whether there is something to read, for every task and partition."""
    ends = driver.job.ends()
    return [ends[at.ssp].upcoming > offset for at, offset in driver.loop.boundary.positions.items()]


def once(step: str, fault: Callable[[], None]) -> Callable[[str], None]:
    """A fault the first time that the step comes."""
    left = [1]

    def at(name: str) -> None:
        if name == step and left:
            left.clear()
            fault()

    return at


def raising(error: Exception) -> Callable[[], None]:
    """A fault that raises."""

    def fault() -> None:
        raise error

    return fault
