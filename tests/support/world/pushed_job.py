"""A job with two pushed tables, on drivers and containers of this process; what it must write is computed apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.system.memory import MemorySystem
from penstock.tables.registry import TableRegistry
from penstock.testing.in_process import InProcessDriver
from penstock.testing.runner.sides import TablesInProcess
from tests.support.world.world import World

TASKS = 3
KEYS = tuple(f"N{number}" for number in range(12))


class Look(ps.StreamTask):
    """Looks a key up in both tables, more than once."""

    def init(self, context: Any) -> None:
        self.planes, self.names = context.store("planes"), context.store("names")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        found = [self.planes.get(envelope.key), self.names.get("name"), self.planes.get(envelope.key)]
        collector.emit(key=envelope.key, value=[*(envelope.value or ()), *found])


class PushedWorld(World):
    """The job and its tables. `planes` has the keys, each with the version as its value; `names` is broadcast."""

    system: MemorySystem

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "pushed", ("events", "out"), TASKS)
        self.app = ps.StreamApplication("pushed")
        self.app.store("planes", key=ps.String(), value=ps.Json(), pushed=ps.PushedTable("/planes", "tail", "year"))
        names = ps.PushedTable("/names", "key", "year", broadcast=True)
        self.app.store("names", key=ps.String(), value=ps.Json(), pushed=names)
        source = self.app.input("m.events", key=ps.String(), value=ps.Json())
        once = source.partition_by(lambda envelope: envelope.key, envelope=True).process(
            Look, stores=["planes", "names"], id="first"
        )
        twice = once.partition_by(lambda envelope: envelope.key, envelope=True).process(
            Look, stores=["planes", "names"], id="second"
        )
        twice.send_to(self.app.output("m.out", key=ps.String(), value=ps.Json()))
        self.messages = 0
        self.tables = TablesInProcess(self.objects, self.paths, self.app.graph(), TASKS)

    def push(self, version: int) -> None:
        """Publish this version of both tables."""
        self.push_planes(version)
        self.push_names(version)

    def push_planes(self, version: int) -> None:
        assert self.tables.push("planes", [{"tail": key, "year": version} for key in KEYS]).version == version

    def push_names(self, version: int) -> None:
        assert self.tables.push("names", [{"key": "name", "year": version}]).version == version

    def driver(self, **config: object) -> InProcessDriver:
        keys = {
            "job.batch.max.messages": 12,
            "side.inputs.bootstrap.timeout.ms": 20_000,
            **{key.replace("__", "."): value for key, value in config.items()},
        }
        return self.make(self.app.graph(), keys, memory=False)

    def put(self, rounds: int = 1) -> None:
        """Append a message of every key, so many times."""
        self.messages += rounds * len(KEYS)
        for _ in range(rounds):
            for number, key in enumerate(KEYS):
                self.append("events", number % TASKS, (0, ps.String().to_bytes(key), b"[]"))

    def output(self) -> list[list[int]]:
        """The values that were read of the tables for each message, in the order of partitions and offsets."""
        return [ps.Json().from_bytes(value or b"") for _, _, value, *_ in self.records("out")]

    def versions(self, table: str) -> tuple[int, ...]:
        """The versions that are published."""
        return TableRegistry(self.objects, self.paths, table).versions().numbers

    def file_of(self, table: str, version: int, task: int) -> str:
        """The key of the file of a version that has the rows of a task."""
        registry = TableRegistry(self.objects, self.paths, table)
        manifest = registry.manifest(version)
        return registry.file_key(manifest, manifest.of_task(task)[0])

    def folders(self, table: str) -> list[str]:
        """The folders of a table on the host."""
        return sorted(path.name for path in self.folder.glob(f"*/{table}/*") if path.is_dir())


def in_use(driver: InProcessDriver) -> dict[str, int | None]:
    return {table.table: table.in_use for table in driver.board.wings.get("tables", ())}


def lag(driver: InProcessDriver) -> int:
    """The number of messages left to read."""
    ends = driver.job.streams.ends()
    return sum(ends[at.ssp].upcoming - offset for at, offset in driver.loop.boundary.positions.items())


def keep_busy(driver: InProcessDriver, world: PushedWorld, until_in_use: Mapping[str, int]) -> None:
    """Batches, each with new messages, until these versions are in use."""

    def are_in_use() -> bool:
        world.put()
        return in_use(driver) == until_in_use

    until(driver, are_in_use)


def until(driver: InProcessDriver, condition: Callable[[], object]) -> None:
    """Steps, with whatever there is to read, until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        driver.loop.step()
