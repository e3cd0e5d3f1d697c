"""The displays of a running job: the dashboard in the job's driver, and tables and plots in a notebook, which are
drawn again until the job ends.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.admin.jobs import FoundJob, opened
from penstock.base.retry import SYSTEM_CLOCK
from penstock.config.model import JobConfig
from penstock.dashboard.server import Dashboard
from penstock.dashboard.watch import Live, Watches
from penstock.dashboard.work import History, Totals
from penstock.driver.job import Job
from penstock.errors import NotFoundError
from penstock.facts import plot_svg
from penstock.host.logs import logs_folder
from penstock.job.paths import JobPaths

logger = logging.getLogger(__name__)


def serve(config: JobConfig, paths: JobPaths, live: Live) -> Dashboard:
    """Serve the page of this driver's job, on `job.dashboard.port`.

    Args:
        config: the job's configuration.
        paths: the job.
        live: see `Live`.

    Raises:
        ConfigError: nothing can listen on the port, a package is missing, or the address cannot be written.
    """
    settings = config.job

    @contextmanager
    def open_job(name: str) -> Iterator[FoundJob]:
        if name != paths.root:
            raise NotFoundError(f"the dashboard of a driver shows its job `{paths.root}` only")
        with opened(config) as found:
            yield found

    @contextmanager
    def open_all() -> Iterator[list[FoundJob]]:
        with open_job(paths.root) as found:
            yield [found]

    served = Dashboard(
        Watches(open_job, open_all, live),
        open_job,
        host=settings.dashboard_host,
        port=settings.dashboard_port or 0,
        token=settings.dashboard_token,
        home=paths.root,
        address_file=logs_folder(config) / f"dashboard-{paths.root}.address",
    )
    logger.info("dashboard: %s", served.logged_url)
    return served


EVERY_S = 1.0
POINTS = 120
"""Moments in a plot: the last two minutes."""


def show(job: Job) -> Callable[[], None]:
    """Show the job from now on, in the output of a cell. Call it in IPython only.

    Returns:
        a function that leaves the output as it is then. A job has one output at most.
    """
    shell: Any = importlib.import_module("IPython").get_ipython()
    if type(shell).__name__ == "TerminalInteractiveShell":  # which shows no HTML
        print(repr(job))
        return lambda: None
    return _LiveView(job).close


class _LiveView:
    """The output of one cell."""

    def __init__(self, job: Job) -> None:
        display: Any = importlib.import_module("IPython.display")
        self._job = job
        self._html = display.HTML
        self._history = History()
        self._closing = threading.Event()
        self._output = display.display(self._html(self._drawn()), display_id=True)
        threading.Thread(target=self._run, name="penstock-notebook", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            has_ended = self._job.ending.done.wait(EVERY_S)
            if not self._closing.is_set():
                self._output.update(self._html(self._drawn()))
            if has_ended:
                return

    def _drawn(self) -> str:
        start, metrics, _ = self._job.live_metrics()
        self._history.add(Totals.of(start, SYSTEM_CLOCK.now_ms(), metrics))
        lately = self._history.of_this_start[-POINTS:]
        reads = {stream: None for each in lately for stream in each.read}
        rates = {stream: [each.read.get(stream, 0.0) for each in lately] for stream in reads}
        lags = {stream: [each.lag.get(stream, 0.0) for each in lately] for stream in reads}
        plots = plot_svg("Messages read", "a second", rates) + plot_svg("Lag", "messages", lags)
        return self._job._repr_html_() + plots
