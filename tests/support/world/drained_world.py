"""The job of `drained_job` on drivers and containers of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.api.requests import DrainNotification
from penstock.application.application import Application
from penstock.config.load import load_config
from penstock.drain.driver import Drain
from penstock.system.base import System
from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.apps import drained_app
from tests.support.jobs.drained_job import DrainHome
from tests.support.jobs.home import wait_until
from tests.support.stores.hooked_store import HookedStore
from tests.support.world.timed_job import steps, steps_and_commit
from tests.support.world.world import ends


class DrainWorld(DrainHome):
    """The job. A driver that is started while another one lives takes the job from it."""

    def __init__(self, folder: Path, app: str = "two_exchanges", **config: object) -> None:
        given = {name.replace("_", "."): value for name, value in config.items()}
        stores = {f"stores.{store}.factory": "memory" for store in ("first", "last", "first.timers", "hours.window")}
        super().__init__(folder, app, config={"job.drain-monitor.poll.interval.ms": 10**7, **stores, **given})
        self.clock = SettableClock(1_700_000_000_000)
        self.store = HookedStore(self.objects)
        """The object store as the drivers have it."""
        self.systems: dict[str, System] = {"local": self.system}
        self.drivers: list[InProcessDriver] = []
        self.change: Callable[[Application], None] = lambda _: None

    def application(self) -> Application:
        """Another object for each driver."""
        app = drained_app.APPS[self.app]()
        self.change(app)
        return app

    def started(self, overrides: Mapping[str, object] | None = None, **given: Any) -> InProcessDriver:
        driver = self.claimed(overrides, **given)
        driver.loop.start()
        return driver

    def claimed(self, overrides: Mapping[str, object] | None = None, **given: Any) -> InProcessDriver:
        """Another driver of the job, which has claimed it."""
        graph = self.application().graph()
        config = load_config(
            overrides={**self.config, **(overrides or {})}, stores=[spec.name for spec in graph.stores], environ={}
        )
        driver = InProcessDriver(graph, config, self.store, self.systems, clock=self.clock, **given)
        self.drivers.append(driver)
        return driver

    def waiting(self, uncommitted: int = 0, **given: Any) -> InProcessDriver:
        """A driver with a checkpoint, and with panes and timers that wait; more of them behind it."""
        driver = self.started(**given)
        self.put(12)
        steps_and_commit(driver)
        if uncommitted:
            self.put(uncommitted)
            steps(driver)
        return driver

    def ask_for(self, driver: InProcessDriver) -> DrainNotification:
        """Have it drain; more messages come."""
        notification = self.ask()
        driver.loop.parts.of(Drain).ask()
        self.put(10)
        return notification

    def close(self) -> None:
        self.faults.open()
        for driver in self.drivers:
            driver.close()


class Ending:
    """A run that ends on a thread, because something holds it back."""

    def __init__(self, driver: InProcessDriver) -> None:
        self.driver = driver
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_last_commit(self) -> None:
        """Wait until the run has come to its last commit."""
        wait_until(lambda: self.driver.board.phase == "stopping" or not self._thread.is_alive(), "the last commit")
        assert self._thread.is_alive(), self._error

    def done(self) -> None:
        """Wait for its end, which must be a good one."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            ends(self.driver)
        except BaseException as error:
            self._error = error
