"""Commits: from the containers' changes to one record in the checkpoint log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from penstock.base.parallel import joined, settle
from penstock.base.retry import Clock, Retry, retry
from penstock.batch.batch import Positions
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.sections import Section
from penstock.driver.commit.record import CommitRequest, Recorder
from penstock.driver.part import DriverPart, sections_of
from penstock.errors import ContainerLostError, FencedError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.wire.ports import Fleet
from penstock.wire.protocol import CLEAN_UP, SNAPSHOT, UPLOAD, CleanUp, Markers, TakeSnapshot, UploadSnapshot

logger = logging.getLogger(__name__)
_APPEND = Retry(pause_s=0.2, tries=5)
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class CommitInFlight:
    """A commit whose snapshot is taken."""

    checkpoint_id: CheckpointId
    began: float
    snapshot_ms: int
    abandoned: threading.Event
    record: Future[CheckpointRecord]
    published: Future[None]
    """Done once readers see its exactly-once output."""
    noted: bool = False
    """True once `poll` has returned its record."""
    total_ms: int = 0
    """The time until its record was in the log."""

    def age_ms(self, clock: Clock) -> float:
        return (clock.monotonic() - self.began) * 1000


@dataclass(frozen=True, slots=True)
class CompletedCommit:
    """A commit that is in the log, and its duration: of the part that processing waited for, and in all."""

    record: CheckpointRecord
    snapshot_ms: int
    total_ms: int


class BehindCommit(Protocol):
    """Does something after each commit, in a separate thread."""

    def behind(self, record: CheckpointRecord) -> None:
        """Called on the commit thread with each record that is in the log. Returns at once, and raises nothing."""
        ...

    def close(self, *, wait: bool) -> None: ...


class CommitCoordinator:
    """Makes the checkpoints of one run, in all its epochs. One commit at a time is in flight.

    Used by the run loop's thread. A separate thread does the uploads, the record and the clean-up.
    """

    def __init__(
        self,
        recorder: Recorder,
        fleet: Fleet,
        behind: Sequence[BehindCommit],
        on_failed: Callable[[], None],
        clock: Clock,
        *,
        wings: Sequence[DriverPart] = (),
        confirm: Callable[[Positions], None] = lambda _: None,
    ) -> None:
        """
        Args:
            behind: do what follows a record in the log, in turn.
            on_failed: called, from another thread, when a commit in flight has failed.
            wings: the parts of wings in the run.
            confirm: called, from another thread, before a record of these positions is written. Raises PenstockError
                if it must not be written.
        """
        self._log = recorder.log
        self._recorder = recorder
        self._fleet = fleet
        self._timeout_ms = recorder.settings.commit_timeout_ms
        self._behind = behind
        self._on_failed = on_failed
        self._clock = clock
        self._wings = wings
        self._confirm = confirm
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._append_lock = threading.Lock()
        self.in_flight: CommitInFlight | None = None
        self.last: CheckpointRecord | None = None
        """The last complete checkpoint of the job, which is the parent of the next one."""

    def begin(self, claim: Claim, request: CommitRequest) -> None:
        """Begin a commit: every container takes a snapshot of its changes. The rest runs in the background.

        The changes of a snapshot are in no later one: from here on the commit succeeds, or its epoch ends.

        Raises:
            ContainerLostError: a container is gone.
            PenstockError: a snapshot failed. Others may have been taken, so the run never continues from here.
        """
        if self.in_flight is not None:
            raise AssertionError("one commit is in flight at a time")
        began = self._clock.monotonic()
        parent = self.last.id if self.last else None
        checkpoint_id = self._log.known().next_id(self._clock.now_ms(), round(began * 1e9))
        snapshot = TakeSnapshot(str(checkpoint_id), last=request.ended is not None or request.idle)
        try:
            self._fleet.ask(SNAPSHOT, claim.epoch, snapshot)
        except PenstockError as error:
            raise _final(error, checkpoint_id) from error
        abandoned = threading.Event()
        record: Future[CheckpointRecord] = Future()
        took_ms = round((self._clock.monotonic() - began) * 1000)
        self.in_flight = CommitInFlight(checkpoint_id, began, took_ms, abandoned, record, Future())
        self._thread.submit(self._complete, self.in_flight, claim, request, parent)

    def poll(self) -> CompletedCommit | None:
        """Return the commit in flight if its record has come into the log since the last call. It is in flight until
        its output is published.

        Raises:
            FencedError: another driver owns the log; nothing was made visible.
            ContainerLostError: a container is gone; the commit is not complete, or not published.
            PenstockError: it failed for good.
        """
        flight = self.in_flight
        if flight is None or not flight.record.done():
            return None
        is_noted, flight.noted = flight.noted, True
        self.in_flight = None
        self.last = flight.record.result()
        if not flight.published.done():
            self.in_flight = flight
        elif is_noted:
            flight.published.result()
        elif flight.published.exception() is not None:
            self.in_flight = flight  # the next look raises it
        return None if is_noted else CompletedCommit(self.last, flight.snapshot_ms, flight.total_ms)

    def wait(self, timeout_s: float, stop: threading.Event) -> CompletedCommit | None:
        """Wait until the record of the commit in flight is in the log or, if `poll` has returned it, until its
        output is published. None once nothing is in flight.

        Raises:
            PenstockTimeoutError: it took longer. It may still complete: the next start finds out.
            ContainerLostError: a container is gone, whatever the others still do; or `stop` was set meanwhile.
            The errors of `poll`.
        """
        deadline = self._clock.monotonic() + timeout_s
        while (flight := self.in_flight) is not None:
            if (done := self.poll()) is not None or self.in_flight is None:
                return done
            if stop.is_set():
                raise ContainerLostError("the run was asked to end at once")
            if self._fleet.any_lost:
                raise ContainerLostError(self._fleet.loss())
            if self._clock.monotonic() > deadline:
                raise self._too_late(flight)
            settle(flight.published if flight.record.done() else flight.record, _LOOK_SECONDS)
        return None

    def abandon(self) -> None:
        """End the epoch: the commit in flight will not be in the log, unless it is already."""
        flight, self.in_flight = self.in_flight, None
        if flight is not None:
            with self._append_lock:  # its record is either there, or never will be
                flight.abandoned.set()

    def close(self) -> None:
        """Abandon the commit in flight, and let a clean-up end. No call follows."""
        idle = self.in_flight is None
        self.abandon()
        self._thread.shutdown(wait=idle, cancel_futures=not idle)
        for each in self._behind:
            each.close(wait=idle)

    # On the commit thread.

    def _complete(
        self, flight: CommitInFlight, claim: Claim, request: CommitRequest, parent: CheckpointId | None
    ) -> None:
        try:
            upload = UploadSnapshot(str(flight.checkpoint_id))
            answers = self._fleet.ask(UPLOAD, claim.epoch, upload, abandoned=flight.abandoned)
            found = {task: markers for answer in answers for task, markers in answer.markers.items()}
            sections: dict[Section[Any], Any] = {}
            for part in self._wings:
                own = [answer.wings[part.wing] for answer in answers if part.wing in answer.wings]
                sections |= sections_of(part, partial(part.sections, request.boundary, own))
            record = self._recorder.record(flight.checkpoint_id, parent, claim, request, found, sections)
            self._confirm_inputs(flight, request.boundary.positions)
            self._append(record, flight.abandoned)
        except BaseException as error:
            failure = error if isinstance(error, PenstockError) else PenstockError(f"a commit failed: {error!r}")
            if isinstance(failure, ContainerLostError) and self._is_too_late(flight):
                failure = self._too_late(flight)
            flight.record.set_exception(_final(failure, flight.checkpoint_id))
            if not flight.abandoned.is_set():
                self._on_failed()
            return
        flight.total_ms = round(flight.age_ms(self._clock))
        self._publish(flight, record)
        self._clean_up(record, found)  # it is in flight until then: a manager's next snapshot comes after its clean-up
        flight.record.set_result(record)
        for part in self._wings:
            self._tell(part, record, found, abandoned=flight.abandoned.is_set())
        for each in self._behind:
            each.behind(record)

    def _tell(self, part: DriverPart, record: CheckpointRecord, found: Markers, *, abandoned: bool) -> None:
        """Tell a part about the record. A part that fails keeps no other from being told, and no garbage from being
        collected."""
        try:
            part.recorded(record, found, abandoned=abandoned)
        except Exception:
            logger.exception("the wing `%s` failed after checkpoint %s", part.wing, record.id)

    def _publish(self, flight: CommitInFlight, record: CheckpointRecord) -> None:
        """Let wings begin what has to follow; the commit is in flight until all of it is done."""
        begun = [each for part in self._wings if (each := _begun(part, record, flight.abandoned)) is not None]
        joined(begun).add_done_callback(lambda done: self._note_published(flight, done))

    def _note_published(self, flight: CommitInFlight, publication: Future[None]) -> None:
        error = None if publication.cancelled() else publication.exception()
        if error is None and not publication.cancelled():
            flight.published.set_result(None)
            return
        what = f"publishing after checkpoint {flight.checkpoint_id} failed: {error!r}"
        flight.published.set_exception(error if isinstance(error, PenstockError) else PenstockError(what))
        if not flight.abandoned.is_set():
            self._on_failed()

    def _is_too_late(self, flight: CommitInFlight) -> bool:
        """True if the containers are alive: then the upload takes too long."""
        return flight.age_ms(self._clock) >= self._timeout_ms and not self._fleet.any_lost

    def _too_late(self, flight: CommitInFlight) -> PenstockTimeoutError:
        if flight.noted:
            waits_for = next(filter(None, (part.waits_for() for part in self._wings)), "")
            why = f"It waits for {waits_for}" if waits_for else "Find out whether the system of the output answers"
            return PenstockTimeoutError(
                f"the output of checkpoint {flight.checkpoint_id} is still not published "
                f"{flight.age_ms(self._clock) / 1000:.0f} s after its commit began (task.commit.timeout.ms). Nothing "
                f"is lost: the next start publishes it first. {why}"
            )
        return PenstockTimeoutError(
            f"checkpoint {flight.checkpoint_id} is still not complete {flight.age_ms(self._clock) / 1000:.0f} s after "
            "it began (task.commit.timeout.ms). The last complete checkpoint counts. Find out whether the store of the "
            "backups is slow, or raise task.commit.timeout.ms"
        )

    def _confirm_inputs(self, flight: CommitInFlight, positions: Positions) -> None:
        """Wait for systems of inputs that do not answer, up to the commit timeout."""
        within = Retry(pause_s=0.2, within_s=self._timeout_ms / 1000)
        retry(lambda: self._confirm(positions), within, interrupt=flight.abandoned, clock=self._clock)

    def _append(self, record: CheckpointRecord, abandoned: threading.Event) -> None:
        """Append, and retry failures that may pass; the same record twice is one record."""

        def append() -> None:
            with self._append_lock:
                if abandoned.is_set():
                    raise ContainerLostError(f"checkpoint {record.id} was abandoned with its epoch")
                self._log.append(record)

        try:
            retry(append, _APPEND, interrupt=abandoned, clock=self._clock)
        except ContainerLostError:
            raise
        except RetryableError as error:
            if abandoned.is_set():
                raise ContainerLostError(f"checkpoint {record.id} was abandoned with its epoch") from error
            raise PenstockError(
                f"checkpoint {record.id} could not be written in {_APPEND.tries} tries, so the run ends: {error}. "
                "The next start finds out whether the log has it; nothing is lost"
            ) from error

    def _clean_up(self, record: CheckpointRecord, found: Markers) -> None:
        """Tell the containers to clean up. A failure costs space, not state: the next commit tries again."""
        try:
            self._fleet.ask(CLEAN_UP, record.epoch, CleanUp(str(record.id), found))
        except Exception as error:
            logger.warning("cleaning up after checkpoint %s failed; the next commit tries again: %s", record.id, error)


def _begun(part: DriverPart, record: CheckpointRecord, abandoned: threading.Event) -> Future[None] | None:
    """Let a part begin what has to follow. An error becomes that of a publication: nobody would see it on this thread,
    and the run would wait for the commit until it is too late."""
    try:
        return part.publish(record, abandoned)
    except BaseException as error:
        failed: Future[None] = Future()
        failed.set_exception(error)
        return failed


def _final(error: PenstockError, checkpoint_id: CheckpointId) -> PenstockError:
    """The error for the run loop. It is never one that the run loop would merely retry, since the changes are in no
    later commit."""
    if isinstance(error, ContainerLostError | FencedError) or not isinstance(error, RetryableError):
        return error
    return PenstockError(f"checkpoint {checkpoint_id} failed, so the run ends: {error}")
