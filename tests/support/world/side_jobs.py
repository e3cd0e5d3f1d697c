"""Jobs whose stores are filled from side inputs, on drivers of this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from penstock.side.inputs import SideInputService
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.world.world import World

Records = list[tuple[Any, Any]]


class SideWorld(World):
    """A job named `side` with the input `m.in`, whose outputs are in `m.out`."""

    system: MemorySystem

    def __init__(self, folder: Path, tasks: int = 1) -> None:
        super().__init__(folder, "side", ("in", "out"), tasks)
        self.tasks = tasks
        self.admin = self.system.admin()
        self.config: dict[str, object] = {
            "job.retry.max": 3,
            "job.batch.interval.ms": 10,
            "job.batch.target.ms": None,
            "systems.m.samza.factory": "memory",
        }

    def create(self, stream: str, partitions: int | None = None) -> None:
        self.admin.create_stream(stream, partitions or self.tasks)

    def put(self, stream: str, partition: int, records: Records) -> None:
        """Append messages. Keys are text; values bytes as they are, or JSON, or None."""
        now = time.time_ns() // 1_000_000
        self.append(stream, partition, *((now, _bytes(key, ps.String()), _json(value)) for key, value in records))

    def driver(self, app: ps.StreamApplication, containers: int = 1, **options: Any) -> InProcessDriver:
        """A driver of the application; `loop.start()` opens its first epoch."""
        return self.make(app.graph(), self.config, memory=False, containers=containers, **options)

    def run(self, app: ps.StreamApplication, **options: Any) -> list[Any]:
        """A run up to the end of the input. Returns all values of the output."""
        driver = self.driver(app, until_latest=True, close=False, **options)
        try:
            driver.loop.run()
        finally:
            driver.close()
        return self.output()

    def output(self) -> list[Any]:
        return [orjson.loads(value or b"null") for _, _, value, *_ in self.records("out")]


def service(driver: InProcessDriver, task: int = 0) -> SideInputService:
    """The side inputs of a task's container."""
    container = driver.fleet.container_of(task)
    epoch = container.current
    assert epoch is not None
    return epoch.wings.of(SideInputService)


def settle(driver: InProcessDriver) -> None:
    """Wait until all containers have what the streams hold."""
    for task in range(driver.job.settings.tasks):
        assert service(driver, task).catch_up(20)


def content(driver: InProcessDriver, store: str, task: int = 0) -> dict[bytes, bytes]:
    """The newest content of a store."""
    return dict(service(driver, task).engine(store, task).scan(None, None))


def reading(app: ps.StreamApplication, *stores: str) -> None:
    """For each message of `m.in`, what each store has of its key."""

    app.input("m.in").process(_Reading(stores), stores=list(stores), id="read").send_to(app.output("m.out"))


class _Reading:
    """Makes tasks that read stores."""

    def __init__(self, stores: tuple[str, ...]) -> None:
        self._stores = stores

    def __call__(self) -> ps.StreamTask:
        return _ReadingTask(self._stores)


class _ReadingTask(ps.StreamTask):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def init(self, context: ps.TaskContext) -> None:
        self._stores = [context.store(name) for name in self._names]

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=[store.get(envelope.key) for store in self._stores])


def planes(**options: Any) -> ps.StreamApplication:
    """Reads the store `planes`, which the stream `m.planes` fills."""
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"], **options)
    reading(app, "planes")
    return app


def leave(driver: InProcessDriver) -> None:
    """Commit, and end the driver."""
    driver.loop.commit()
    driver.close()


def asked(world: SideWorld, driver: InProcessDriver, *keys: str, partition: int = 0) -> list[Any]:
    """The values that a batch reads of these keys."""
    before = len(world.output())
    world.put("in", partition, [(key, 0) for key in keys])
    driver.loop.step()
    return world.output()[before:]


def _bytes(value: Any, serde: ps.Serde[Any]) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else serde.to_bytes(value)


def _json(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else orjson.dumps(value)
