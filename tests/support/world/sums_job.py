"""A job that adds up the values of keys, on drivers and containers of this process, and what it must come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.system.base import RawRecord
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.world.world import World

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


class SumsWorld(World):
    """The job, and what was put into its input."""

    system: MemorySystem
    clock: SettableClock

    def __init__(self, folder: Path, system: MemorySystem | None = None, through: str | None = None) -> None:
        """`through` is a durable intermediate stream that all messages go through."""
        super().__init__(folder, "sums", ("events", "sums"), TASKS, system=system, clock=SettableClock())
        self.sums_of(through).send_to(self.app.output("m.sums", key=ps.String(), value=ps.Integer()))
        self.given: list[tuple[str, int]] = []

    def sums_of(self, through: str | None = None) -> ps.MessageStream[Any]:
        """Begin the application again: its stream of sums, which goes nowhere yet."""
        self.app = ps.StreamApplication("sums")
        self.app.store("sums", key=ps.String(), value=ps.Integer())
        source = self.app.input("m.events", key=ps.String(), value=ps.Integer())
        keyed = source.partition_by(lambda envelope: envelope.key, through=through, envelope=True)
        return keyed.process(Sum, stores=["sums"], id="sum")

    def driver(self, containers: int = 2, **config: object) -> InProcessDriver:
        """Another driver of the job. Keys of `config` have `_` for a dot."""
        keys = {"job.batch.max.messages": 4, **{key.replace("_", "."): value for key, value in config.items()}}
        return self.make(self.app.graph(), keys, containers=containers)

    def put(self, *values: int) -> None:
        """Append a message for each value, its key one after the other."""
        for value in values:
            number = len(self.given)
            key = KEYS[number % len(KEYS)]
            self.append("events", number % TASKS, (0, ps.String().to_bytes(key), ps.Integer().to_bytes(value)))
            self.given.append((key, value))

    @property
    def sums(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for key, value in self.given:
            totals[key] += value
        return dict(totals)

    def output(self) -> list[tuple[str, int]]:
        return texts(self.records("sums"))

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


def texts(records: Iterable[RawRecord]) -> list[tuple[str, int]]:
    return [(ps.String().from_bytes(each[1] or b""), ps.Integer().from_bytes(each[2] or b"")) for each in records]


def state(driver: InProcessDriver) -> dict[str, int]:
    """The content of the stores of all tasks."""
    found: dict[str, int] = {}
    for task in range(TASKS):
        engine = driver.fleet.container_of(task).tasks[task].engine("sums")
        found |= {ps.String().from_bytes(k): ps.Integer().from_bytes(v) for k, v in engine.scan(None, None)}
    return found


def drain(driver: InProcessDriver) -> None:
    while any(at_end(driver)) or driver.loop.boundary.left:
        driver.loop.step()


def drain_and_commit(driver: InProcessDriver) -> None:
    drain(driver)
    driver.loop.commit()


def at_end(driver: InProcessDriver) -> list[bool]:
    """For every task and partition, True if there is something to read."""
    ends = driver.job.streams.ends()
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

    def fault() -> None:
        raise error

    return fault
