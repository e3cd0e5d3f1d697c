"""Garbage collection after commits, on a separate thread: it may take long, and no commit waits for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.commit.truncation import Truncation
from penstock.driver.part import DriverPart
from penstock.errors import CorruptError, FencedError, NotFoundError, PenstockError
from penstock.state.admins import BackendAdmins

logger = logging.getLogger(__name__)


class Collection:
    """Deletes everything that no checkpoint needs any more, one collection at a time."""

    def __init__(
        self,
        log: CheckpointLog,
        admins: BackendAdmins,
        wings: Sequence[DriverPart] = (),
        truncation: Truncation | None = None,
    ) -> None:
        """`wings`: the parts of wings in the run. Without `truncation`, it has no durable intermediate streams."""
        self._log = log
        self._admins = admins
        self._wings = wings
        self._truncation = truncation
        self._swept_epoch: int | None = None
        self._incomplete = ""
        """The problem for which the last collection deleted nothing of a backend."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collect")
        self._running: Future[None] | None = None

    def behind(self, record: CheckpointRecord) -> None:
        """Collect after this checkpoint, unless a collection runs: the next one finds its garbage."""
        if self._running is None or self._running.done():
            self._running = self._thread.submit(self._collect, record)

    def close(self, *, wait: bool) -> None:
        """End the thread. No call follows."""
        self._thread.shutdown(wait=wait, cancel_futures=not wait)

    def _collect(self, record: CheckpointRecord) -> None:
        """Delete the garbage of checkpoints that this one does not retain any more, and once an epoch, that of
        earlier epochs. The records go last: until then they say what they needed."""
        view = self._log.known()
        for part in self._wings:
            self._let_collect(part, record)
        if self._truncation is not None:
            self._truncate(self._truncation, record, view.restorable)
        left, sweep = self._log.uncollected(), self._swept_epoch != record.epoch
        if not left and not sweep:
            return
        try:
            try:
                self._admins.collect(record.epoch, view.restorable, list(left.values()), sweep=sweep)
            except (NotFoundError, CorruptError) as error:
                self._log.check_owner()  # a newer owner may have deleted what the marker names
                self._warn_incomplete(record, error)
                return
            self._log.prune(left)
        except FencedError as error:
            logger.info("the collection after checkpoint %s has ended: %s", record.id, error)
        except Exception as error:
            logger.warning("collecting after checkpoint %s failed; the next commit tries again: %s", record.id, error)
        else:
            self._swept_epoch, self._incomplete = record.epoch, ""

    def _let_collect(self, part: DriverPart, record: CheckpointRecord) -> None:
        try:
            part.collect(record)
        except Exception as error:
            logger.warning("the wing `%s` failed to collect after checkpoint %s: %s", part.wing, record.id, error)

    def _warn_incomplete(self, record: CheckpointRecord, error: PenstockError) -> None:
        """Warn once of each problem, because the next collections find the same one."""
        if str(error) != self._incomplete:
            self._incomplete = str(error)
            logger.warning("the collection after checkpoint %s is incomplete: %s", record.id, error)

    def _truncate(
        self, truncation: Truncation, record: CheckpointRecord, restorable: Sequence[CheckpointRecord]
    ) -> None:
        try:
            truncation.behind(record.epoch, restorable)
        except Exception as error:
            logger.warning(
                "truncating the intermediate streams after checkpoint %s failed; the next commit tries again: %s",
                record.id,
                error,
            )
