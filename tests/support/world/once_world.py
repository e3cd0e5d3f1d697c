"""The job of sums with an exactly-once output, on drivers of this process that die at any step of a publication."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths
from penstock.system.base import System
from penstock.testing.in_process import InProcessDriver
from tests.support.streams.hooked_system import HookedSystem
from tests.support.world.sums_job import SumsWorld, drain

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


class OnceWorld(SumsWorld):
    """The output `m.sums` is exactly once."""

    hooked: HookedSystem

    def __init__(self, folder: Path, through: str | None = None) -> None:
        super().__init__(folder, through=through)
        self.hooked = HookedSystem(self.system)
        self.systems["m"] = self.hooked
        self.keys: dict[str, object] = {
            "systems.m.samza.factory": "memory",
            "streams.m.sums.output.guarantee": "exactly-once",
        }

    def write_to(self, name: str, stream: str, system: System, keys: Mapping[str, object]) -> None:
        """Let this stream of another system be the output."""
        self.hooked = HookedSystem(system)
        self.systems |= {"m": self.system, name: self.hooked}
        exactly_once = {f"streams.{name}.{stream}.output.guarantee": "exactly-once"}
        self.keys = {"systems.m.samza.factory": "memory", **keys, **exactly_once}

    def config(self, **more: object) -> JobConfig:
        return self.load({**self.keys, **more})

    def next(
        self, from_checkpoint: str | None = None, *, until_latest: bool = False, **more: object
    ) -> InProcessDriver:
        keys = {"job.batch.max.messages": 4, **self.keys, **more}
        return self.make(self.app.graph(), keys, from_checkpoint=from_checkpoint, until_latest=until_latest)

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
    def outbox(self) -> list[str]:
        return self.objects.list(PATHS.outbox())


class DiedError(PenstockError):
    """A driver was killed here."""


def die() -> None:
    raise DiedError("the driver was killed")
