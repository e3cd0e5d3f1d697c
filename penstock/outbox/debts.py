"""Debts: messages that earlier records left to be published, and whose they are."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from penstock.checkpoint.log import CheckpointLog
from penstock.job.identity import writer_name
from penstock.job.paths import JobPaths
from penstock.outbox.unpublished import OwedOutput, UnpublishedObjects, outbox_name, owed_of
from penstock.system.contract.definition import QUERY_SYSTEM


def own_debt(owed: OwedOutput, uid: str, paths: JobPaths) -> OwedOutput:
    """The part of a debt that is this job's, with the keys of objects in this job's folder.

    The uid ends the name of who publishes. A folder that was moved keeps its uid, and with it the name. The folder of a
    job with another uid is a copy: what its original had not published is the original's to publish. Rows for
    DataFrames are also the copy's, because it has a handler that may not have finished with them. Pure.
    """
    if owed.publisher and not owed.publisher.endswith(f"-{uid}"):
        rows = (_for_query(each) for each in owed.unpublished)
        owed = OwedOutput(tuple(each for each in rows if each.objects))
    return replace(owed, unpublished=tuple(_here(each, paths) for each in owed.unpublished))


def _for_query(owed: UnpublishedObjects) -> UnpublishedObjects:
    """The rows for DataFrames."""
    found = []
    for each in owed.objects:
        parts = {ssp: part for ssp, part in each.parts.items() if ssp.system == QUERY_SYSTEM}
        if parts:
            found.append(replace(each, parts=parts))
    return replace(owed, objects=tuple(found))


def publisher_name(owed: OwedOutput, uid: str, paths: JobPaths) -> str:
    """The name that the job publishes under. `owed`: what of the job's debt is its own."""
    return owed.publisher or writer_name(paths, uid)


def _here(owed: UnpublishedObjects, paths: JobPaths) -> UnpublishedObjects:
    objects = tuple(replace(each, key=paths.outbox(outbox_name(each.key))) for each in owed.objects)
    return replace(owed, objects=objects)


class Debts:
    """The debt in the log, less the messages that this driver has published. Thread-safe.

    Inside a query, which takes over what a batch has sent to its DataFrames, outputs count as owed from `keep` until
    the query has taken them, so that every record names their objects.
    """

    def __init__(self, log: CheckpointLog, uid: str, paths: JobPaths) -> None:
        self._log = log
        self._uid = uid
        self._paths = paths
        self._lock = threading.Lock()
        self._published = -1
        """The output of the records up to this number is published."""
        self._taken: float = math.inf
        """A query has taken over the output of the records up to this number. Infinite: no query takes over any."""

    def now(self) -> OwedOutput:
        """Ascending by slot."""
        with self._lock:
            through = min(self._published, self._taken)
        return own_debt(owed_of(self._log.known()), self._uid, self._paths).after(through)

    def newest(self) -> int:
        """The number of the newest record of which anything can have been published: the last one that leaves
        anything, or one that is damaged or missing now."""
        view = self._log.known()
        left = own_debt(owed_of(view), self._uid, self._paths).unpublished
        return max(left[-1].slot if left else -1, *view.damaged, *view.faults, -1)

    def published(self, slot: int) -> None:
        """The output of the records up to this number is published."""
        with self._lock:
            self._published = max(self._published, slot)

    def taken(self) -> None:
        """The query has taken over everything that the last record names."""
        with self._lock:
            self._taken = max(self._taken, self.newest())

    def keep(self) -> None:
        """The job begins with the last record, or has gone back to it, and continues with all that it names."""
        with self._lock:
            self._taken = -1
