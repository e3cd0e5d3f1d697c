"""Asks the run of a job to drain, withdraws the request, and exchanges requests with Samza."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

from penstock.admin.job.logs import audited, this_process
from penstock.admin.job.running import drain_summary, lease
from penstock.admin.jobs import FoundJob
from penstock.admin.samza import coordinator_line, imported_notifications
from penstock.api.requests import NEXT_RUN, DrainMode, DrainNotification
from penstock.base.wording import counted, listed
from penstock.batch.batch import QUERY
from penstock.batch.watermarks import TIME
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import (
    DRAIN,
    NAMESPACE,
    DrainNotifications,
    DrainPoller,
    DrainRequests,
    drain_target,
    drained_together,
    encode_notification,
    present_run,
)
from penstock.drain.wing import DrainProgress
from penstock.errors import ConfigError, NotFoundError, PenstockError, PenstockTimeoutError
from penstock.graph.store_declarations import NAME_RULE, is_name
from penstock.graph.stores import OPERATOR_STORES, StoreLayout

_POLL_SECONDS = 0.2
Outcome: TypeAlias = Literal["asked", "asked before", "drained", "cancelled"]


@dataclass(frozen=True, slots=True)
class DrainFacts:
    """The result of `drain` and `cancel_drain`. `run_id` is None for the run that comes next. `requests` are the uuids
    of the run's notifications, and `last_checkpoint` is the job's."""

    job: str
    status: Outcome
    run_id: str | None
    requests: tuple[str, ...]
    is_running: bool
    """True if a driver has the job. Without one, the drain begins with the next start."""
    last_checkpoint: str | None
    notes: tuple[str, ...] = ()
    """Messages that an import left out."""
    summary: DrainProgress | None = None
    """The work of each stage, once the run has drained; None also if the run could not write it."""
    operators: tuple[str, ...] = ()
    """The operators that drain alone; empty: all drain."""


def drain(
    job: FoundJob,
    *,
    run_id: str | None = None,
    operators: Sequence[str] = (),
    wait: bool = False,
    timeout_s: float = 3600.0,
) -> DrainFacts:
    """Ask the present run of the job to drain: it reads no more input, processes everything in flight and everything
    that waits for a time, commits, and ends. If the run was killed, its next start does this. If the job has no run,
    its next one does, as it starts. Later runs are not affected.

    Args:
        job: the job.
        run_id: the run that is meant, by its `app.run.id`. It need not have started yet: the request waits for it, and
            the start of another run deletes the request. None: the present run, or the next one.
        operators: the ids of the operators that drain alone, before their definition changes. Everything that waits in
            them fires, and the run ends with a checkpoint that has the state of all others. Empty: all drain.
        wait: wait until the run has drained and its driver has released the job, so that the next start can follow at
            once.
        timeout_s: how long to wait, in seconds.

    Raises:
        NotFoundError: nothing is in flight, the named run has drained, or another run has the job; or nothing waits in
            such an operator. Nothing was written.
        ConfigError: the job runs inside a streaming query, which drains as a whole. Nothing was written.
        PenstockError: with `wait`, the job is not running, or the run ended in another way.
        PenstockTimeoutError: the run has not drained in time; the request stays.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     asked = admin.drain(job)
        ...     (asked.status, asked.is_running, admin.cancel_drain(job).status)
        ('asked', False, 'cancelled')
    """
    running = _is_running(job)
    target = drain_target(job.log.read("report"), job.objects, job.paths, run_id, running=running)
    alone = tuple(sorted({operators} if isinstance(operators, str) else set(operators)))
    if alone:
        _check_operators(job, alone)
    requests = job.drains
    found = requests.find()
    own, before = found.of_run(target) if run_id else found.for_run(target), True
    if not own or not _covers(own, alone):
        mode = DrainMode.OPERATORS if alone else DrainMode.DEFAULT
        changes = _audited_run(target) | ({"operators": ", ".join(alone)} if alone else {})
        with audited(job, "drain", changes):
            own, before = (*own, requests.ask(target, mode, alone)), False
    if wait:
        deadline = time.monotonic() + timeout_s
        drained = _await_drain(job, own, deadline, running=running).run_id
        _await_end(job, drained, deadline)
        own = tuple(replace(each, run_id=drained) for each in own)
        return replace(_facts(job, "drained", own, running=False), summary=drain_summary(job, drained))
    return _facts(job, "asked before" if before else "asked", own, running=running)


def cancel_drain(job: FoundJob, *, timeout_s: float = 600.0) -> DrainFacts:
    """Withdraw the requests to drain the present run, and wait for its answer. The run goes back to its last checkpoint
    and continues; nothing is lost. This is possible until its last commit begins. If the job has no run, the requests
    that wait for one are withdrawn.

    Args:
        job: the job.
        timeout_s: how long to wait, in seconds.

    Raises:
        NotFoundError: nobody has asked the present run to drain.
        PenstockError: it is too late: the run has drained.
        PenstockTimeoutError: the run has not answered in time; the request to cancel stays.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.cancel_drain(job)
        Traceback (most recent call last):
        ...
        penstock.errors.NotFoundError: nobody has asked job flights-1 to drain, or it has drained already
    """
    own, requests = _to_cancel(job), job.drains
    if not own:
        raise NotFoundError(f"nobody has asked job {job.paths.root} to drain, or it has drained already")
    with audited(job, "drain cancel", _audited_run(own[0].run_id)):
        for each in own:
            requests.cancel(each, this_process())
        if not (running := _is_running(job)):
            requests.delete(own)
        deadline = time.monotonic() + timeout_s
        while not _gone(requests, own):
            _pause(deadline, f"job {job.paths.root} has not answered the request to cancel its drain")
        requests.delete(own)  # a run that ended meanwhile may not have seen the request to cancel
        if _answer(job, own) is not None:
            raise PenstockError(f"it is too late to cancel: job {job.paths.root} has drained. Start it to read on")
    return _facts(job, "cancelled", own, running=running)


def _covers(own: Sequence[DrainNotification], operators: Collection[str]) -> bool:
    """True if these requests drain the operators; none: everything."""
    asked = drained_together(own)
    return asked is None or (bool(operators) and asked.issuperset(operators))


def _check_operators(job: FoundJob, operators: Sequence[str]) -> None:
    """Raise NotFoundError unless the last checkpoint has something of each operator that a drain brings to its end."""
    latest = job.log.read("report").latest
    if latest is None:
        raise NotFoundError(f"job {job.paths.root} has no checkpoint yet, so nothing waits in its operators")
    if latest.section(QUERY).offered is not None:
        raise ConfigError(
            f"job {job.paths.root} runs inside a streaming query, which drains as a whole: `penstock drain "
            f"{job.paths.root}`"
        )
    # Nothing waits in an aggregate, and a table belongs to no operator. One that was renamed is known by its watermark.
    waits = {store.rpartition(".")[0] for store in latest.stores if store.endswith(OPERATOR_STORES)}
    users = {user for layout in latest.stores.values() for user in StoreLayout.parse(layout).operators}
    totals = {store.removesuffix(".aggregate") for store in latest.stores if store.endswith(".aggregate")}
    known = {each for each in waits | users if not each.startswith("(")} - totals
    these = f"These can be drained alone: {listed([f'`{each}`' for each in sorted(known)]) if known else 'none'}"
    if odd := [each for each in operators if not is_name(each)]:
        raise ConfigError(f"no operator has the id {listed([repr(each) for each in odd])}: {NAME_RULE}. {these}")
    timed = latest.section(TIME).watermarks
    if strangers := [each for each in operators if each not in known and each not in timed]:
        raise NotFoundError(
            f"nothing waits in {counted(len(strangers), 'operator')} of job {job.paths.root}: "
            f"{listed([f'`{each}`' for each in strangers])}. {these}"
        )


def _audited_run(run_id: str) -> dict[str, str]:
    return {"run": "the next one" if run_id == NEXT_RUN else run_id}


def _present_run(job: FoundJob) -> str | None:
    return present_run(job.log.read("report"), job.objects, job.paths)


def _to_cancel(job: FoundJob) -> tuple[DrainNotification, ...]:
    run_id, found = _present_run(job), job.drains.find()
    if run_id is not None and (own := found.for_run(run_id)):
        return own
    return () if _is_running(job) else found.awaiting(job.log.read("report"))


def _is_running(job: FoundJob) -> bool:
    return lease(job).running != "not running"


def _await_drain(
    job: FoundJob, own: tuple[DrainNotification, ...], deadline: float, *, running: bool
) -> CheckpointRecord:
    requests, root = job.drains, job.paths.root
    while (answer := _answer(job, own)) is None:
        if not running:
            raise PenstockError(
                f"job {root} is not running, so it does not drain now. The request stays: start the job, and it "
                "drains without reading input"
            )
        if _gone(requests, own) and _answer(job, own) is None:
            raise PenstockError(f"job {root} did not drain: the request was cancelled, or the run ended before it")
        _pause(deadline, f"job {root} has not drained. The request stays; `penstock drain --cancel` takes it back")
        running = running and _is_running(job)
    return answer


def _await_end(job: FoundJob, run_id: str, deadline: float) -> None:
    """Wait until the driver of the run no longer has the job. It may be another run's by then."""
    while True:
        found = lease(job)
        if found.running == "not running" or found.holder is None or found.holder.run_id != run_id:
            return
        _pause(deadline, f"job {job.paths.root} has drained, but its driver has not ended yet: {found.holder}")


def _answer(job: FoundJob, own: tuple[DrainNotification, ...]) -> CheckpointRecord | None:
    asked = _names(own)
    records = job.log.read("report").checkpoints
    return next((each for each in reversed(records) if asked.intersection(each.section(DRAIN).answered)), None)


def _gone(requests: DrainRequests, own: tuple[DrainNotification, ...]) -> bool:
    return _names(own).isdisjoint(_names(requests.find().notifications))


def _names(notifications: Iterable[DrainNotification]) -> set[str]:
    return {str(each.uuid) for each in notifications}


def _pause(deadline: float, late: str) -> None:
    if time.monotonic() > deadline:
        raise PenstockTimeoutError(f"time is up: {late}")
    time.sleep(_POLL_SECONDS)


def _facts(job: FoundJob, status: Outcome, own: tuple[DrainNotification, ...], *, running: bool) -> DrainFacts:
    latest = job.log.read("report").latest
    return DrainFacts(
        job=job.paths.root,
        status=status,
        run_id=None if own[0].run_id == NEXT_RUN else own[0].run_id,
        requests=tuple(str(each.uuid) for each in own),
        is_running=running,
        last_checkpoint=None if latest is None else str(latest.id),
        operators=tuple(sorted(drained_together(own) or ())),
    )


@dataclass(frozen=True, slots=True)
class ExportedDrains:
    """Messages of Samza's coordinator stream as JSON texts, and notes about what these leave out."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]


def export_drains(job: FoundJob) -> ExportedDrains:
    """The requests to drain the job, whichever run they name, in the form of Samza's coordinator stream.

    What cannot be read is left out, and `notes` names it.

    Args:
        job: the job.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.export_drains(job).lines
        ()
    """
    found = job.drains.find()
    notes = tuple(f"left out: {problem}" for _, problem in found.unreadable)
    lines = (
        coordinator_line(NAMESPACE, str(each.uuid), encode_notification(each).decode()) for each in found.notifications
    )
    return ExportedDrains(tuple(lines), notes)


def import_drains(job: FoundJob, lines: Iterable[str]) -> DrainFacts:
    """Ask the present run to drain with the requests in messages of Samza's coordinator stream, the inverse of
    `export_drains`. Each keeps its uuid. Requests for other runs are left out, unless the job has no run and theirs may
    still come.

    Args:
        job: the job.
        lines: JSON texts, `{"key": ..., "value": ...}`. Of equal keys the last one counts; one without a value deletes
            it.

    Raises:
        CorruptError: a line cannot be read; the message has its number. Nothing was written.
        NotFoundError: no line asks such a run to drain. Nothing was written.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.import_drains(job, [])
        Traceback (most recent call last):
        ...
        penstock.errors.NotFoundError: no request asks the next run of job flights-1 to drain
    """
    notifications, notes = imported_notifications(lines)
    running, view = _is_running(job), job.log.read("report")
    run_id = present_run(view, job.objects, job.paths)
    given = DrainNotifications(tuple(notifications))
    own = given.awaiting(view) if run_id is None else given.for_run(run_id)
    notes += [f"skipped: {each.uuid} is for run {each.run_id}" for each in notifications if each not in own]
    if not own:
        whom = "the next run" if run_id is None else f"run {run_id}"
        raise NotFoundError("; ".join([f"no request asks {whom} of job {job.paths.root} to drain", *notes]))
    requests = job.drains
    before = _names(own) <= _names(requests.find().notifications)
    with audited(job, "drain import", _audited_run(own[0].run_id)):
        for each in own:
            requests.write(each)
    return replace(_facts(job, "asked before" if before else "asked", own, running=running), notes=tuple(notes))


_POLL_MS = 5000


class DrainUtils:
    """Writes and deletes the requests to drain a job, as Samza's DrainUtils. They are in the job's metadata.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     asked = admin.DrainUtils.write_drain_notification(job)
        ...     [each.uuid == asked for each in admin.DrainUtils.notifications(job)], admin.DrainUtils.cleanup_all(job)
        ([True], 1)
    """

    @staticmethod
    def write_drain_notification(
        job: FoundJob, mode: DrainMode = DrainMode.DEFAULT, *, run_id: str | None = None, operators: Sequence[str] = ()
    ) -> UUID:
        """Ask a run to drain. The request is durable when this returns; each call writes another one.

        Args:
            job: the job.
            mode: how the run drains.
            run_id: the run, by its `app.run.id`; None: the one that owns the job, or the next one if there is none.
            operators: in the mode OPERATORS, the ids of those that drain. A run whose application lacks one deletes
                the request, and logs a warning.

        Returns:
            The uuid of the request.

        Raises:
            ConfigError: no run can have this id, or the operators do not fit the mode. Nothing was written.
            NotFoundError: nothing is in flight, the named run has drained, or another run has the job. Nothing was
                written.
        """
        target = drain_target(job.log.read("report"), job.objects, job.paths, run_id)
        with audited(job, "drain", _audited_run(target)):
            return job.drains.ask(target, mode, tuple(operators)).uuid

    @staticmethod
    def notifications(job: FoundJob) -> tuple[DrainNotification, ...]:
        """The requests that the job has, ordered by uuid. One for the next run has that run's id once it obeys.

        Args:
            job: the job.
        """
        return job.drains.find().notifications

    @staticmethod
    def cleanup(job: FoundJob, run_id: str) -> int:
        """Delete the requests of one run, and return how many there were. A run that drains goes on without them.

        Args:
            job: the job.
            run_id: the run; `*` for requests that wait for the next one.
        """
        with audited(job, "drain cleanup", {"run": run_id}):
            return job.drains.clear(run_id)

    @staticmethod
    def cleanup_all(job: FoundJob) -> int:
        """Delete all requests of the job, and return how many there were.

        Args:
            job: the job.
        """
        with audited(job, "drain cleanup", {"run": "all"}):
            return job.drains.clear()


class DrainMonitor(DrainPoller):
    """Looks for a request to drain one run, on a separate thread, as Samza's DrainMonitor. It calls back once, from
    that thread, and then stops. A store that fails delays the answer and ends nothing.

    A run has such a monitor already. This one is for programs beside it, such as one that stops producers when a drain
    begins. It looks as long as the job is open.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     monitor = admin.DrainMonitor(job, "v1")
        ...     monitor.register_drain_callback(lambda: print("it drains")), monitor.look(), monitor.state.name
        (True, False, 'INIT')
    """

    def __init__(self, job: FoundJob, run_id: str | None = None, interval_ms: int = _POLL_MS) -> None:
        """Make a monitor that does not look yet.

        Args:
            job: the job. It has to stay open while the monitor runs.
            run_id: the run; None: the one that owns the job now.
            interval_ms: the time between two looks, in milliseconds.

        Raises:
            NotFoundError: no run owns the job, and none was named.
            ConfigError: the interval is less than 1.
        """
        run = run_id or _present_run(job)
        if run is None:
            raise NotFoundError(f"no run owns job {job.paths.root} now: name the run that is to be watched")
        super().__init__(job.drains, run, interval_ms)
