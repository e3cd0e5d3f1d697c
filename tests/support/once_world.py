"""The job of sums with an exactly-once output, on drivers of this process that die at any step of a publication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths
from penstock.system.base import System
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.hooked_store import HookedStore
from tests.support.hooked_system import HookedSystem
from tests.support.sums_job import World, drain

PATHS = JobPaths("sums", "1")
STEPS = (
    "upload",
    "before the record",
    "after the record",
    "publish",
    "begin",
    "append",
    "mark",
    "commit",
    "committed",
)
"""Where a driver may die between the snapshot of a commit and the end of its publication."""


class OnceWorld(World):
    """What outlives a driver. The output `m.sums` is exactly once."""

    def __init__(self, folder: Path, through: str | None = None) -> None:
        super().__init__(folder, MemorySystem("m"), through)
        self.hooked = HookedSystem(self.system)
        self.store = HookedStore(self.objects)
        self.systems: dict[str, System] = {"m": self.hooked, "local": MemorySystem("local")}
        self.keys: dict[str, object] = {
            "systems.m.samza.factory": "memory",
            "streams.m.sums.output.guarantee": "exactly-once",
        }

    def config(self, **more: object) -> JobConfig:
        """The job's configuration."""
        keys = {
            "job.name": "sums",
            "job.root": self.root,
            "job.logged.store.base.dir": str(self.folder),
            "job.batch.max.messages": 4,
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 1,
            "task.commit.ms": 0,
            "stores.sums.factory": "memory",
            **self.keys,
            **more,
        }
        return load_config(overrides=keys, environ={})

    def next(
        self, from_checkpoint: str | None = None, *, until_latest: bool = False, **more: object
    ) -> InProcessDriver:
        """Another driver of the job."""
        driver = InProcessDriver(
            self.app.graph(),
            self.config(**more),
            self.store,
            self.systems,
            clock=self.clock,
            from_checkpoint=from_checkpoint,
            until_latest=until_latest,
        )
        self.drivers.append(driver)
        return driver

    def kill(self, driver: InProcessDriver) -> None:
        """End as a process that is killed."""
        self.drivers.remove(driver)
        driver.close()
        self.store.heal()
        self.hooked.at = lambda _: None

    def kill_drivers(self, *steps: str) -> None:
        """A driver for each step: it reads new messages, and is killed when its commit comes to the step."""
        for step in steps:
            first = len(self.given) + 1
            self.put(*range(first, first + 6))
            driver = self.next()
            driver.loop.start()
            drain(driver)
            self.at(driver, step, die)
            with pytest.raises(DiedError):
                driver.loop.commit()
            self.kill(driver)

    def finish(self) -> None:
        """The next driver runs to its end; state and output are those of the oracle."""
        driver = self.next()
        driver.loop.start()
        drain(driver)
        driver.loop.finish()
        self.check(driver)
        self.kill(driver)

    @property
    def log(self) -> LogView:
        """The checkpoint log."""
        return CheckpointLog(self.objects, PATHS).read()

    @property
    def outbox(self) -> list[str]:
        """The objects of the outbox."""
        return self.objects.list(PATHS.outbox())

    def at(self, driver: InProcessDriver, step: str, fault: Callable[[], None], nth: int = 1) -> list[str]:
        """A fault at the nth time that this step of a commit or publication comes. Returns the steps that came."""
        came: list[str] = []

        def look(name: str) -> None:
            came.append(name)
            if name == step and came.count(name) == nth:
                fault()

        def put(name: str) -> Callable[[Any, str], None]:
            return lambda call, key: look(name) if call == "put" and "/checkpoints/" in key else None

        driver.fleet.at = look
        self.hooked.at = look
        self.store.before, self.store.after = put("before the record"), put("after the record")
        return came


class DiedError(PenstockError):
    """A driver was killed here."""


def die() -> None:
    """The driver is killed."""
    raise DiedError("the driver was killed")
