"""The dashboard in a job's driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.admin.jobs import FoundJob, opened
from penstock.config.model import JobConfig
from penstock.dashboard.server import Dashboard
from penstock.dashboard.watch import Live, Watches
from penstock.errors import NotFoundError
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
