"""The drain notifications of a job in its metadata store."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.api.drain import DrainNotification
from penstock.checkpoint.log import CheckpointLog
from penstock.drain.notification import NAMESPACE, decode_notification, encode_notification
from penstock.errors import CorruptError, NotFoundError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.metadata.requests import write_request

logger = logging.getLogger(__name__)
_CANCEL = "drain-cancel"
"""The namespace of requests to cancel a drain, by the uuid of its notification."""


@dataclass(frozen=True, slots=True)
class Found:
    """The notifications of a job, by uuid, and what could not be read, by the name of the object."""

    notifications: tuple[DrainNotification, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def of_run(self, run_id: str) -> tuple[DrainNotification, ...]:
        """Those of one run."""
        return tuple(each for each in self.notifications if each.run_id == run_id)


class DrainRequests:
    """Writes, reads and deletes the drain notifications of one job. Thread-safe; any number of processes may use it.

    Every notification is a separate object, named by its uuid, that is never overwritten. It is for one run: no other
    one follows it. Any method raises RetryableError if the store fails.
    """

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
        """
        self._objects = objects
        self._paths = paths
        self._reported: set[str] = set()

    def write(self, notification: DrainNotification) -> None:
        """Store a notification, durably. Failures that may pass are retried. Idempotent."""
        write_request(
            self._objects,
            self._path(notification),
            encode_notification(notification),
            what=f"the drain of run {notification.run_id} could not be asked for",
            look=f"penstock status {self._paths.root}",
        )

    def find(self) -> Found:
        """All of the job's. What cannot be read asks nobody to drain; it is logged once."""
        found, unreadable = [], []
        for path in self._objects.list(self._paths.metadata_folder(NAMESPACE)):
            try:
                notification = decode_notification(self._objects.get(path), path)
                if self._path(notification) != path:
                    raise CorruptError(f"`{path}` is not named by the uuid in it, {notification.uuid}")
                found.append(notification)
            except NotFoundError:  # it was deleted meanwhile
                continue
            except CorruptError as error:
                unreadable.append((path, str(error)))
                if path not in self._reported:
                    self._reported.add(path)
                    logger.warning("%s. Nothing is drained for it: delete the object", error)
        return Found(tuple(sorted(found, key=lambda each: str(each.uuid))), tuple(unreadable))

    def delete_ended(self, found: Found) -> tuple[DrainNotification, ...]:
        """Delete those of these notifications whose runs are over, because the log has another owner. Returns them. A
        driver that lost its job therefore deletes no request for the run that has it now.

        Args:
            found: what `find` returned.
        """
        owner = CheckpointLog(self._objects, self._paths).read("report").owner
        over = tuple(each for each in found.notifications if owner is not None and each.run_id != owner.run_id)
        self.delete(over)
        return over

    def delete_stale_cancels(self) -> None:
        """Delete requests to cancel whose notification is gone: a process was killed between the two deletions of
        `delete`. They would cancel a notification that is imported again. Idempotent."""
        cancels = self._objects.list(self._paths.metadata_folder(_CANCEL))  # before notifications, which come first
        known = {self._cancel_path(each) for each in self.find().notifications} if cancels else ()
        for path in cancels:
            if path not in known:
                self._objects.delete_durably(path)

    def delete(self, notifications: Iterable[DrainNotification]) -> None:
        """Delete exactly these, and requests to cancel them. Idempotent. The deletion of a notification answers the
        request to cancel it, so it comes first."""
        for notification in notifications:
            self._objects.delete_durably(self._path(notification))
            self._objects.delete_durably(self._cancel_path(notification))

    def cancel(self, notification: DrainNotification, who: str) -> None:
        """Ask that the run should not drain for this notification. The run answers by deleting it, or by ending as
        drained. Idempotent."""
        self._objects.put_if_absent(self._cancel_path(notification), who.encode())

    def cancelled_by(self, notification: DrainNotification) -> str | None:
        """Who cancelled a notification; None if nobody did."""
        try:
            return self._objects.get(self._cancel_path(notification)).decode(errors="replace")
        except NotFoundError:
            return None

    def _path(self, notification: DrainNotification) -> str:
        return self._paths.metadata(NAMESPACE, str(notification.uuid))

    def _cancel_path(self, notification: DrainNotification) -> str:
        return self._paths.metadata(_CANCEL, str(notification.uuid))
