"""The pushed tables of a run: one thread looks for new versions, builds and publishes them, beside the batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from penstock.api.state.side_inputs import PushedTable
from penstock.errors import FencedError, PenstockError
from penstock.start.job import ClaimedJob
from penstock.tables.driver.build import TableBuild
from penstock.tables.versions.build import TableBuilder
from penstock.tables.versions.manifest import PublishedVersion
from penstock.tables.versions.notes import refusal_of
from penstock.tables.versions.registry import TableRegistry

logger = logging.getLogger(__name__)
_JOIN_SECONDS, _CANCEL_SECONDS = 30.0, 0.5
NOT_LOOKED = PublishedVersion(None, note="its source is looked at for the first time")


class TableBuilds:
    """Knows the version of each table that batches should read, as of the last look, and builds new versions.

    `published` may be called by any thread, and never waits. Looks are made by one thread: the one that `start` makes,
    or the caller's.
    """

    def __init__(
        self,
        job: ClaimedJob,
        builder: TableBuilder,
        needed: Callable[[str], Collection[int]] = lambda _: (),
    ) -> None:
        """`needed`: table → the versions that containers read or load. Called by the thread that looks."""
        self._builder = builder
        self._clock = clock = job.clock
        self._poll_s = job.config.tables.poll_ms / 1000
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._published: dict[str, PublishedVersion] = {}
        self._failures: dict[str, str] = {}
        self._tables = [
            TableBuild(
                spec,
                job.settings.tasks,
                job.claim.epoch,
                TableRegistry(job.objects, job.paths, spec.name),
                refusal_of(job.objects, job.paths, spec.name),
                builder,
                job.config.tables.versions_retained,
                needed,
                job.log.check_owner,
                self._report,
                clock,
            )
            for spec in job.topology.graph.stores
            if isinstance(spec.side, PushedTable)
        ]
        self._thread = threading.Thread(target=self._run, name="penstock-tables", daemon=True)

    def published(self, table: str) -> PublishedVersion:
        with self._lock:
            return self._published.get(table, NOT_LOOKED)

    def start(self) -> None:
        """Look every `tables.poll.ms` until `close`. Without tables, there is no thread. Idempotent; called by the
        thread that calls `close`."""
        if self._tables and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Stop looking, and cancel the build that is under way. Idempotent. The next run collects the remains of a
        build."""
        self._closing.set()
        deadline = self._clock.monotonic() + _JOIN_SECONDS
        while self._thread.is_alive() and self._clock.monotonic() < deadline:
            self._builder.cancel()  # again and again: a build may be about to submit its job
            self._thread.join(_CANCEL_SECONDS)

    def look(self) -> None:
        """Look at every table once. Failures are logged, and the next look tries again.

        Raises:
            FencedError: another driver has the job.
        """
        for table in self._tables:
            if self._closing.is_set():
                return
            try:
                table.look()
            except FencedError:
                raise
            except PenstockError as error:
                self._failed(table.name, str(error))
            except Exception as error:  # the thread must not end because of one table
                logger.exception("looking for a new version of table `%s` failed", table.name)
                self._failed(table.name, repr(error))
            else:
                self._failures.pop(table.name, None)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except FencedError as error:  # the run loop finds out by itself
                logger.info("no more versions of tables are built: %s", error)
                return
            self._clock.wait(self._closing, self._poll_s)

    def _failed(self, table: str, text: str) -> None:
        if self._closing.is_set():
            return
        if self._failures.get(table) != text:
            logger.warning("table `%s`: looking for a new version failed; the next look tries again: %s", table, text)
        self._failures[table] = text
        before = self.published(table)
        self._report(table, PublishedVersion(before.manifest, before.pinned, text))

    def _report(self, table: str, published: PublishedVersion) -> None:
        with self._lock:
            self._published[table] = published
