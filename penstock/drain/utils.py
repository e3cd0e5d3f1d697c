"""Asking for a drain, and cleaning up after one, as Samza's DrainUtils."""

from __future__ import annotations

import secrets
import time
import uuid
from contextlib import suppress

from penstock.api.drain import DrainMode, DrainNotification
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import DrainRequests
from penstock.errors import IncompatibleError, NotFoundError
from penstock.metadata.lease import LeaseState
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.system.query import NO_DRAIN, queries_of


def write_drain_notification(
    objects: ObjectStore, paths: JobPaths, mode: DrainMode = DrainMode.DEFAULT, *, only_run: str | None = None
) -> DrainNotification:
    """Ask the run of a job to drain, whether it runs at the moment or was killed and is to be started again. Durable
    when this returns.

    Args:
        objects: the object store of the job root.
        paths: the keys of the job's objects.
        mode: how it is to drain.
        only_run: the id of the run that is meant, if the caller knows it; None: whichever owns the job.

    Returns:
        The notification, with the id of the run that owns the job.

    Raises:
        NotFoundError: the job has no run, its last run has ended, or another run than `only_run` owns the job.
            Nothing was written.
        IncompatibleError: the job runs inside a streaming query.
        PenstockError: the store failed.
    """
    run_id = present_run(objects, paths)
    latest = CheckpointLog(objects, paths).read("report").latest
    if latest is not None and queries_of(latest.identities):
        raise IncompatibleError(NO_DRAIN)
    if run_id is None:
        raise no_run(paths, latest)
    if only_run not in (None, run_id):
        raise NotFoundError(f"run {only_run} of job {paths.root} has ended; the job now belongs to run {run_id}")
    notification = DrainNotification(timed_uuid(time.time_ns() // 1_000_000), run_id, mode)
    DrainRequests(objects, paths).write(notification)
    return notification


def no_run(paths: JobPaths, latest: CheckpointRecord | None) -> NotFoundError:
    """The error of a request to drain a job that has no run.

    Args:
        paths: the keys of the job's objects.
        latest: its last checkpoint; None if it has none.
    """
    if latest is not None and latest.ended == "drained":
        why = "its last run has drained. Nothing is in flight, and the next start may be of a changed program"
    else:
        why = (
            "its last run has ended, or it was never started. To drain what waits in its last checkpoint, start the "
            "application as it was first, then drain it"
        )
    return NotFoundError(f"job {paths.root} has no run that could drain: {why}")


def timed_uuid(now_ms: int) -> uuid.UUID:
    """A random UUID of version 7 (RFC 9562), which begins with the time.

    Args:
        now_ms: the wall clock, in epoch milliseconds.
    """
    version, variant = 7 << 76, 0b10 << 62
    return uuid.UUID(int=now_ms << 80 | version | secrets.randbits(12) << 64 | variant | secrets.randbits(62))


def asked_ms(name: uuid.UUID) -> int | None:
    """When a request was written, in epoch milliseconds by the clock of who wrote it, as far as its UUID says so.

    Args:
        name: the UUID of the request.

    Example:
        >>> from penstock.drain.utils import asked_ms, timed_uuid
        >>> asked_ms(timed_uuid(1_700_000_000_000))
        1700000000000
    """
    return name.int >> 80 if name.version == 7 else None


def present_run(objects: ObjectStore, paths: JobPaths) -> str | None:
    """The id of the run that owns the job: one that runs, one that is about to write its start checkpoint, or one that
    the next start continues. None if there is none.

    Args:
        objects: the object store of the job root.
        paths: the keys of the job's objects.
    """
    view = CheckpointLog(objects, paths).read("report")
    if view.unfinished_run is not None or view.owner is None:
        return view.unfinished_run
    with suppress(NotFoundError):
        lease = LeaseState.decode(objects.get(paths.lease), paths.lease)
        begins = view.latest is None or view.latest.epoch < view.owner.epoch
        if begins and not lease.released and lease.holder.run_id == view.owner.run_id:
            return view.owner.run_id
    return None


def cleanup(objects: ObjectStore, paths: JobPaths, run_id: str) -> int:
    """Delete the notifications of one run. Returns how many there were.

    Args:
        objects: the object store of the job root.
        paths: the keys of the job's objects.
        run_id: the run.
    """
    requests = DrainRequests(objects, paths)
    own = requests.find().of_run(run_id)
    requests.delete(own)
    return len(own)


def cleanup_all(objects: ObjectStore, paths: JobPaths) -> int:
    """Delete the notifications of every run. Returns how many there were.

    Args:
        objects: the object store of the job root.
        paths: the keys of the job's objects.
    """
    requests = DrainRequests(objects, paths)
    found = requests.find().notifications
    requests.delete(found)
    return len(found)
