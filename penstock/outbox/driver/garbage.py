"""Deletes objects that were published, and objects that no record will ever name."""

from __future__ import annotations

import logging
import threading

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths, outbox_epoch
from penstock.objects.store import ObjectStore
from penstock.outbox.unpublished import OUTBOX, outbox_name, owed_of

logger = logging.getLogger(__name__)


class OutboxGarbage:
    """Deletes the objects of a job's outbox that the last record does not leave to be published.

    Of the present epoch the driver deletes only objects that its records have named: one that none has named yet may
    be a commit's in flight. An object of an older epoch that the last record does not leave is never named again. Such
    objects are found by listing, once an epoch.
    """

    def __init__(self, objects: ObjectStore, paths: JobPaths, log: CheckpointLog) -> None:
        self._objects = objects
        self._paths = paths
        self._log = log
        self._lock = threading.Lock()
        self._named: set[str] = set()
        """Objects named by records of this driver and not deleted yet."""
        self._swept_epoch: int | None = None

    def note(self, record: CheckpointRecord) -> None:
        found = record.section(OUTBOX)
        objects = (*found.objects, *(each for own in found.unpublished for each in own.objects))
        with self._lock:
            self._named |= {outbox_name(each.key) for each in objects}

    def collect(self, record: CheckpointRecord) -> None:
        """Delete the objects that this record, the newest in the log, does not leave. Failed deletions are tried
        again with the next record."""
        if not record.section(OUTBOX).publisher:
            return
        with self._lock:
            named = set(self._named)
        left = owed_of(self._log.known()).names
        try:
            for name in sorted(named - left):
                self._objects.delete(self._paths.outbox(name))
                with self._lock:
                    self._named.discard(name)
            if self._swept_epoch != record.epoch:
                for key in outbox_garbage(self._objects, self._paths, record.epoch, left):
                    self._objects.delete(key)
                self._swept_epoch = record.epoch
        except PenstockError as error:
            logger.warning(
                "deleting what was published before checkpoint %s failed; the next commit tries again: %s",
                record.id,
                error,
            )


def outbox_garbage(objects: ObjectStore, paths: JobPaths, epoch: int, left: frozenset[str]) -> list[str]:
    """The keys of the objects of older epochs that are not `left` to be published."""
    return [
        key
        for key in objects.list(paths.outbox())
        if (written := outbox_epoch(key)) is not None and written < epoch and outbox_name(key) not in left
    ]
