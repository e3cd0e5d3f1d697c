"""A job on drivers and containers of this process, over systems and an object store that outlive its drivers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.api.requests import DrainMode, DrainNotification
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.drain.driver import Drain
from penstock.drain.requests import DrainRequests, write_drain_notification
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_store
from penstock.system.base import OffsetRange, RawRecord, System
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.hooked_store import Call, HookedStore
from tests.support.streams.hooked_system import HookedSystem


class KilledError(BaseException):
    """Ends a driver in the middle of a step."""


class World:
    """The object store, the systems and the clock. Subclasses add an application and an oracle."""

    system: System
    """Named `m` in the job."""
    clock: Clock
    hooked: HookedSystem | None = None
    """The system whose steps `at` sees."""

    def __init__(
        self,
        folder: Path,
        name: str,
        streams: Iterable[str] = (),
        partitions: int = 1,
        *,
        system: System | None = None,
        clock: Clock = SYSTEM_CLOCK,
        root: str | None = None,
    ) -> None:
        """`root`: the job root, by default one in memory."""
        self.folder = folder
        self.paths = JobPaths(name, "1")
        self.root = root or f"memory://{uuid.uuid4().hex}"
        self.objects = open_store(self.root)
        self.store = HookedStore(self.objects)
        """The same as the drivers have it."""
        self.system = system or MemorySystem("m")
        admin = self.system.admin()
        for stream in streams:
            admin.create_stream(stream, partitions)
        self.systems: dict[str, System] = {"m": self.system, "local": MemorySystem("local")}
        self.clock = clock
        self.drivers: list[InProcessDriver] = []

    def load(self, keys: Mapping[str, object], stores: Iterable[str] | None = None) -> JobConfig:
        """The configuration with these keys: small batches, and commits only where a test asks for one."""
        overrides = {
            "job.name": self.paths.name,
            "job.id": self.paths.job_id,
            "job.root": self.root,
            "job.logged.store.base.dir": str(self.folder),
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 1,
            "task.commit.ms": 0,
            **keys,
        }
        return load_config(overrides=overrides, stores=None if stores is None else list(stores), environ={})

    def make(
        self, graph: ApplicationGraph, keys: Mapping[str, object], *, memory: bool = True, **given: Any
    ) -> InProcessDriver:
        """Another driver of the job; with `memory`, stores are in memory unless the keys say otherwise."""
        names = [store.name for store in graph.stores]
        factories = {f"stores.{name}.factory": "memory" for name in names} if memory else {}
        config = self.load({**factories, **keys}, names)
        driver = InProcessDriver(graph, config, self.store, self.systems, **{"clock": self.clock, **given})
        self.drivers.append(driver)
        return driver

    def started(self, *given: Any, **more: Any) -> InProcessDriver:
        """Another driver, whose run has begun. `driver`, which a subclass has, gets the arguments."""
        driver: InProcessDriver = getattr(self, "driver")(*given, **more)  # noqa: B009
        driver.loop.start()
        return driver

    def append(self, stream: str, partition: int, *records: RawRecord) -> None:
        """Append (timestamp, key, value) to a stream of `m`."""
        self.system.writer(None).append(SystemStreamPartition("m", stream, partition), records)

    def records(self, stream: str) -> Iterator[RawRecord]:
        """(timestamp, key, value) of everything in a stream of `m`, by partition."""
        admin, reader = self.system.admin(), self.system.reader()
        for partition, ends in sorted(admin.offsets(stream).items()):
            ssp = SystemStreamPartition("m", stream, partition)
            for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                yield from ((time, key, value) for _, time, key, value, *_ in chunk)

    @property
    def log(self) -> LogView:
        return CheckpointLog(self.objects, self.paths).read()

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.log.checkpoints

    @property
    def drains(self) -> DrainRequests:
        """The requests to drain, as a command sees them."""
        return DrainRequests(self.objects, self.paths)

    def ask_to_drain(self, driver: InProcessDriver | None = None, *operators: str) -> DrainNotification:
        """Ask the present run to drain, or these operators alone. The driver, if one is given, learns of it at once."""
        mode = DrainMode.OPERATORS if operators else DrainMode.DEFAULT
        notification = write_drain_notification(self.objects, self.paths, mode, operators=operators)
        if driver is not None:
            driver.loop.parts.of(Drain).ask()
        return notification

    def at(self, driver: InProcessDriver, step: str, fault: Callable[[], None], nth: int = 1) -> list[str]:
        """A fault at the nth time that this step of a batch, commit or publication comes. Returns the steps that came:
        those of the driver's runner and fleet, of `hooked`, and `before the record` and `after the record`."""
        came: list[str] = []

        def look(name: str) -> None:
            came.append(name)
            if name == step and came.count(name) == nth:
                fault()

        def put(name: str) -> Callable[[Call, str], None]:
            return lambda call, key: look(name) if call == "put" and "/checkpoints/" in key else None

        driver.runner.at = driver.fleet.at = look
        if self.hooked is not None:
            self.hooked.at = look
        self.store.before, self.store.after = put("before the record"), put("after the record")
        return came

    def kill(self, driver: InProcessDriver) -> None:
        """End as a process that is killed between two calls."""
        self.drivers.remove(driver)
        driver.close()
        self.store.heal()
        if self.hooked is not None:
            self.hooked.at = lambda _: None

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
        forget_memory_store(self.root)


def ends(driver: InProcessDriver, limit: int = 500) -> None:
    """Steps until the run has ended."""
    left, step = iter(range(limit)), driver.loop.step

    def counted() -> bool:
        assert next(left, None) is not None, f"the run has not ended in {limit} steps"
        return step()

    setattr(driver.loop, "step", counted)  # noqa: B010
    while not driver.loop.run_to_the_end():
        pass
