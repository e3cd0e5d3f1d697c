"""The drain notifications of a job: their written form, which is Samza's, their place in the job's metadata store, and
the monitor that polls for them, as Samza's DrainMonitor does. A drain is asked for here, and cleaned up after, as by
Samza's DrainUtils.
"""

from __future__ import annotations

import logging
import threading
import uuid as uuids
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

import orjson
from msgspec import Struct

from penstock.api.requests import NEXT_RUN, DrainMode, DrainNotification
from penstock.base.documents import decode, decoding
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.sections import Section
from penstock.config.kinds import RefusedError
from penstock.config.settings import OtherSettings
from penstock.errors import ConfigError, CorruptError, NotFoundError, PenstockError
from penstock.job.commands import new_uuid, write_request
from penstock.job.lease import LeaseState
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

NAMESPACE = "samza-drain-v1"
"""The namespace of notifications in the metadata store; their type in Samza's coordinator stream."""


class _WrittenNotification(Struct, rename="camel"):
    uuid: str
    run_id: str
    drain_mode: str
    operators: tuple[str, ...] = ()


def encode_notification(notification: DrainNotification) -> bytes:
    """Encode a notification exactly as Samza does, if Samza has its mode."""
    written: dict[str, object] = {
        "uuid": str(notification.uuid),
        "runId": notification.run_id,
        "drainMode": notification.drain_mode.value,
    }
    return orjson.dumps(written | ({"operators": notification.operators} if notification.operators else {}))


def decode_notification(data: str | bytes, name: str) -> DrainNotification:
    """Decode a notification of Samza or Penstock. The mode may be in any case; unknown fields are ignored.

    Raises:
        CorruptError: it is no notification, or its mode is not known.
    """
    what = f"`{name}` is not a drain notification"
    written = decode(_WrittenNotification, data, what)
    with decoding(what):
        mode = DrainMode.__members__.get(written.drain_mode.upper())
        if mode is None:
            known = " and ".join(DrainMode.__members__)
            raise CorruptError(f"{what}: its mode is `{written.drain_mode}`, known are {known}")
        return DrainNotification(uuids.UUID(written.uuid), written.run_id, mode, written.operators)


def drained_together(notifications: Iterable[DrainNotification]) -> frozenset[str] | None:
    """The operators that a run drains if it obeys all of these; None: all of them.

    Example:
        >>> import uuid
        >>> from penstock.drain.requests import drained_together
        >>> asked = [ps.DrainNotification(uuid.UUID(int=7), "3f2a", ps.DrainMode.OPERATORS, ("hours",))]
        >>> drained_together(asked)
        frozenset({'hours'})
    """
    named: frozenset[str] = frozenset()
    for each in notifications:
        if not each.operators:
            return None
        named |= set(each.operators)
    return named or None


def asked_ms(name: uuids.UUID) -> int | None:
    """The time of a request in epoch milliseconds, by its writer's clock; None if its UUID is not of version 7.

    Example:
        >>> import uuid
        >>> from penstock.drain.requests import asked_ms
        >>> asked_ms(uuid.UUID("018bcfe5-6800-7000-8000-000000000000"))
        1700000000000
    """
    return name.int >> 80 if name.version == 7 else None


logger = logging.getLogger(__name__)
_CANCEL = "drain-cancel"
"""Namespace: uuid of a notification → who cancelled it."""
_OBEYED = "drain-obeyed"
"""Namespace: uuid of a notification for the next run → id of the run that obeys it."""


@dataclass(frozen=True, slots=True)
class DrainSection:
    """The drain that ended a run, at its last checkpoint."""

    answered: tuple[str, ...] = ()
    """The uuids of the requests that the end of the run has answered."""


DRAIN = Section("drain", DrainSection)


@dataclass(frozen=True, slots=True)
class DrainNotifications:
    """A job's notifications, ordered by uuid, and the objects that cannot be read, with the reason. A notification
    for the next run has the id of the run that obeys it, once there is one."""

    notifications: tuple[DrainNotification, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def of_run(self, run_id: str) -> tuple[DrainNotification, ...]:
        return tuple(each for each in self.notifications if each.run_id == run_id)

    def for_run(self, run_id: str) -> tuple[DrainNotification, ...]:
        """The notifications that a run obeys: its own, and those for the next run that none obeys yet."""
        return tuple(each for each in self.notifications if each.run_id in (run_id, NEXT_RUN))

    def awaiting(self, view: LogView) -> tuple[DrainNotification, ...]:
        """The notifications of runs that may still come: the next run, a run that nobody has seen, or one that a
        start with its name continues."""
        latest = view.latest
        over = {claim.run_id for claim in view.claims}
        if latest is not None and not latest.is_closed:
            over.discard(latest.run_id)
        return tuple(each for each in self.notifications if each.run_id not in over)


class DrainRequests:
    """Writes, reads and deletes the drain notifications of one job. Thread-safe; any number of processes may use it.

    Every notification is a separate object, named by its uuid, that is never overwritten. It is for one run: no other
    one follows it. The first run that sees a notification for the next run makes it its own (`obey`). Any method raises
    RetryableError if the store fails.
    """

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        self._objects = objects
        self._paths = paths
        self._reported: set[str] = set()

    def write(self, notification: DrainNotification) -> None:
        """Store a notification durably. Retries failures that may pass. Idempotent."""
        write_request(
            self._objects,
            self._path(notification),
            encode_notification(notification),
            what=f"the drain of run {notification.run_id} could not be asked for",
            look=f"penstock status {self._paths.root}",
        )

    def ask(
        self, run_id: str, mode: DrainMode = DrainMode.DEFAULT, operators: tuple[str, ...] = ()
    ) -> DrainNotification:
        """Store a new notification for this run, durably. `operators`: those of the mode OPERATORS."""
        notification = DrainNotification(new_uuid(), run_id, mode, operators)
        self.write(notification)
        return notification

    def find(self) -> DrainNotifications:
        """All notifications of the job. An unreadable object asks nobody to drain; it is logged once."""
        found, unreadable = [], []
        for path in self._objects.list(self._paths.metadata_folder(NAMESPACE)):
            try:
                notification = decode_notification(self._objects.get(path), path)
                if self._path(notification) != path:
                    raise CorruptError(f"`{path}` is not named by the uuid in it, {notification.uuid}")
                found.append(self._resolved(notification))
            except NotFoundError:  # it was deleted meanwhile
                continue
            except CorruptError as error:
                unreadable.append((path, str(error)))
                if path not in self._reported:
                    self._reported.add(path)
                    logger.warning("%s. Nothing is drained for it: delete the object", error)
        return DrainNotifications(tuple(sorted(found, key=lambda each: str(each.uuid))), tuple(unreadable))

    def obey(self, found: DrainNotifications, run_id: str) -> DrainNotifications:
        """Turn notifications for the next run into notifications for this run, so that no later run obeys them. If the
        log has another owner, nothing changes: a driver that lost its job takes none from the run that has it now. The
        run must have a checkpoint: otherwise a start after a crash would not continue it."""
        if not found.of_run(NEXT_RUN):
            return found
        owner = CheckpointLog(self._objects, self._paths).read("report").owner
        if owner is None or owner.run_id != run_id:
            return found
        for each in found.of_run(NEXT_RUN):
            self._objects.put_if_absent(self._obeyed_path(each), run_id.encode())
        return replace(found, notifications=tuple(map(self._resolved, found.notifications)))

    def delete_over(self, found: DrainNotifications) -> tuple[DrainNotification, ...]:
        """Delete the notifications that no run obeys any more, because the log has another owner than their run or a
        checkpoint that answers them. Returns them. So a driver that lost its job deletes no request for the run
        that has it now."""
        view = CheckpointLog(self._objects, self._paths).read("report")
        if view.owner is None:
            return ()
        answered = {name for record in view.checkpoints for name in record.section(DRAIN).answered}
        obeyed = (view.owner.run_id, NEXT_RUN)
        over = tuple(each for each in found.notifications if each.run_id not in obeyed or str(each.uuid) in answered)
        if over:
            self.delete(over)
        return over

    def delete_remains(self) -> None:
        """Delete the companions of notifications that are gone: a process was killed halfway through `delete`, or a
        run obeyed a notification during its deletion. A leftover request to cancel would cancel a notification
        that is imported again. Idempotent."""
        folders = map(self._paths.metadata_folder, (_CANCEL, _OBEYED))
        remains = [path for folder in folders for path in self._objects.list(folder)]  # before what they are about
        notifications = self.find().notifications if remains else ()
        known = {path(each) for each in notifications for path in (self._cancel_path, self._obeyed_path)}
        for path in remains:
            if path not in known:
                self._objects.delete_durably(path)

    def delete(self, notifications: Iterable[DrainNotification]) -> None:
        """Delete exactly these notifications, then their requests to cancel. Idempotent. The order matters: the
        deletion of a notification answers the request to cancel it."""
        for notification in notifications:
            self._objects.delete_durably(self._path(notification))
            self._objects.delete_durably(self._cancel_path(notification))
            self._objects.delete_durably(self._obeyed_path(notification))

    def clear(self, run_id: str | None = None) -> int:
        """Delete the notifications of a run, or all. Returns how many there were."""
        found = self.find()
        own = found.notifications if run_id is None else found.of_run(run_id)
        self.delete(own)
        return len(own)

    def cancel(self, notification: DrainNotification, who: str) -> None:
        """Ask the run not to drain for this notification. The run answers by deleting the notification, or by ending
        as drained. Idempotent."""
        self._objects.put_if_absent(self._cancel_path(notification), who.encode())

    def cancelled_by(self, notification: DrainNotification) -> str | None:
        try:
            return self._objects.get(self._cancel_path(notification)).decode(errors="replace")
        except NotFoundError:
            return None

    def _resolved(self, notification: DrainNotification) -> DrainNotification:
        if notification.run_id != NEXT_RUN:
            return notification
        path = self._obeyed_path(notification)
        with suppress(NotFoundError), decoding(f"`{path}` does not name a run"):
            return replace(notification, run_id=self._objects.get(path).decode())
        return notification

    def _path(self, notification: DrainNotification) -> str:
        return self._paths.metadata(NAMESPACE, str(notification.uuid))

    def _cancel_path(self, notification: DrainNotification) -> str:
        return self._paths.metadata(_CANCEL, str(notification.uuid))

    def _obeyed_path(self, notification: DrainNotification) -> str:
        return self._paths.metadata(_OBEYED, str(notification.uuid))


_JOIN_SECONDS = 5.0


class DrainPollerState(Enum):
    INIT = "INIT"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class DrainPoller:
    """Polls the metadata store for a request to drain one run, on a separate thread.

    It calls back once, from that thread, and then stops. A store that fails delays the answer and ends nothing.
    """

    def __init__(self, requests: DrainRequests, run_id: str, interval_ms: int) -> None:
        """Raises ConfigError unless the interval is positive."""
        if interval_ms <= 0:
            raise ConfigError(f"job.drain-monitor.poll.interval.ms is {interval_ms}; it must be at least 1")
        self._requests = requests
        self._run_id = run_id
        self._interval_s = interval_ms / 1000
        self._callback: Callable[[], None] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._state = DrainPollerState.INIT
        self._thread = threading.Thread(target=self._run, name="penstock-drain-monitor", daemon=True)

    @property
    def state(self) -> DrainPollerState:
        """INIT before `start`, RUNNING while it looks, STOPPED once it has called back or was stopped."""
        return self._state

    def register_drain_callback(self, callback: Callable[[], None]) -> bool:
        """Set the callback, which the monitor's thread calls once. Returns False if the monitor was started, or has
        a callback already."""
        with self._lock:
            if self._state is not DrainPollerState.INIT or self._callback is not None:
                return False
            self._callback = callback
            return True

    def start(self) -> None:
        """Begin to poll. Does nothing if the monitor has begun already, or was stopped. Raises PenstockError if it
        has no callback."""
        with self._lock:
            if self._state is not DrainPollerState.INIT:
                return
            if self._callback is None:
                raise PenstockError("a drain monitor needs a callback before it is started")
            self._state = DrainPollerState.RUNNING
            self._thread.start()

    def stop(self) -> None:
        """Stop polling. Idempotent. A poll that has begun may still end with the callback."""
        with self._lock:
            began, self._state = self._state is DrainPollerState.RUNNING, DrainPollerState.STOPPED
            self._stopping.set()
        if began and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def look(self) -> bool:
        """True if the run is asked to drain, now. Raises RetryableError if the store fails."""
        return bool(self._requests.find().for_run(self._run_id))

    def _run(self) -> None:
        callback = self._callback
        while callback is not None and not self._stopping.wait(self._interval_s):
            try:
                asked = self.look()
            except Exception as error:  # whatever the store raises: looking goes on
                logger.warning("requests to drain could not be read; the next look tries again: %s", error)
                continue
            if asked:
                with self._lock:
                    self._state = DrainPollerState.STOPPED
                callback()
                return


def write_drain_notification(
    objects: ObjectStore,
    paths: JobPaths,
    mode: DrainMode = DrainMode.DEFAULT,
    *,
    run_id: str | None = None,
    only_run: str | None = None,
    operators: tuple[str, ...] = (),
) -> DrainNotification:
    """Ask a run of a job to drain. It may be running, or start later. The request is durable when this returns.

    Args:
        run_id: the run; None: the one that owns the job, or the next one if there is none.
        only_run: the id of the run that must own the job.
        operators: in the mode OPERATORS, the ids of those that drain.

    Returns:
        The notification. Its run id is `*` if the next run is to drain.

    Raises:
        ConfigError: no run can have this id.
        NotFoundError: nothing is in flight, the named run has drained, another run has the job, or another run than
            `only_run` owns it. Nothing was written.
        PenstockError: the store failed.
    """
    target = drain_target(CheckpointLog(objects, paths).read("report"), objects, paths, run_id)
    if only_run not in (None, target):
        raise NotFoundError(f"run {only_run} of job {paths.root} has ended")
    return DrainRequests(objects, paths).ask(target, mode, operators)


def drain_target(
    view: LogView, objects: ObjectStore, paths: JobPaths, run_id: str | None = None, *, running: bool = True
) -> str:
    """The run id that a request to drain gets; see `write_drain_notification`.

    Args:
        view: the checkpoint log of the job.
        objects, paths: where its lease is.
        run_id: the run; None: the one that owns the job, or the next one.
        running: False if no driver has the job: a run without a checkpoint then never comes again.
    """
    if run_id is not None:
        try:
            OtherSettings.run_id.kind.read(run_id)
        except RefusedError:
            raise ConfigError(f"no run has the id `{run_id}`: expected {OtherSettings.run_id.kind.expected}") from None
    present, latest = present_run(view, objects, paths) if running else view.unfinished_run, view.latest
    if present is not None and run_id in (None, present):
        return present
    if present is not None and running and _holder(objects, paths) == present:
        raise NotFoundError(
            f"job {paths.root} belongs to run {present}, not to run {run_id}. Ask run {present} to drain"
        )
    if present is None and latest is not None and latest.is_closed and run_id in (None, latest.run_id):
        how = "drained" if latest.ended == "drained" else "brought its stream to the end"
        raise NotFoundError(
            f"job {paths.root} has no run that could drain: its last run has {how}. Nothing is in flight, and the next "
            "start may be of a changed program"
        )
    return run_id or NEXT_RUN


def _holder(objects: ObjectStore, paths: JobPaths) -> str | None:
    """The run of the driver that holds the job's lease, as far as this process can see."""
    try:
        lease = LeaseState.decode(objects.get(paths.lease), paths.lease)
    except NotFoundError:
        return None
    return None if lease.released or lease.holder.known_dead() else lease.holder.run_id


def present_run(view: LogView, objects: ObjectStore, paths: JobPaths) -> str | None:
    """The id of the run that owns the job: it runs, is about to write its start checkpoint, or is continued by the
    next start. None if there is none."""
    if view.unfinished_run is not None or view.owner is None:
        return view.unfinished_run
    begins = view.latest is None or view.latest.epoch < view.owner.epoch
    return view.owner.run_id if begins and _holder(objects, paths) == view.owner.run_id else None
