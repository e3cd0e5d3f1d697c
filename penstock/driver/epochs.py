"""Epochs, and the runs of a batch in one.

An epoch begins in three steps: claim the log, decide what state to begin with, open the epoch everywhere. A start and
a rewind are the same steps. They differ in the origin: until the run's own start checkpoint is in the log, an epoch
begins with the choice of the start plan; every later one with the last checkpoint.

A batch is repeated in its epoch until one run succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock import errors
from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointRecord, Claim, Origin
from penstock.driver.commit.record import CommitRequest
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.failures import RunFailures
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.feed import PlannedBatch
from penstock.driver.part import DriverPart, RunContext
from penstock.runtime.reports import (
    InconsistentReports,
    JobFailed,
    Report,
    SuccessfulBatch,
    UserCodeFailed,
    decide_outcome,
    earliest,
)
from penstock.wire.ports import EpochOpening, OtherWayError, RunBrokenError
from penstock.wire.protocol import WIND_DOWN, WindDown

logger = logging.getLogger(__name__)


class Epochs:
    """The epochs of one run, one after the other."""

    def __init__(
        self,
        run: RunContext,
        commits: CommitSchedule,
        failures: RunFailures,
        wings: Sequence[DriverPart],
    ) -> None:
        """
        Args:
            wings: the parts of wings in the run.
        """
        self._job = job = run.job
        self._fleet = run.fleet
        self._runner = run.runner
        self._commits = commits
        self._failures = failures
        self._board = run.board
        self._stop = run.stop.immediate
        self._wings = wings
        self.claim: Claim = job.claim
        self._started = False
        """True once the run's start checkpoint is in the log, and the startpoints that it took are deleted."""

    def start(self) -> Boundary:
        """Open the first epoch, under the claim that was made when the job was prepared. Returns the boundary to
        begin at."""
        self._board.update(phase="restoring" if self._job.start.restore_from else "starting")
        return self._enter(self.claim, None)

    def rewind(self, cause: errors.RetryableError | None = None) -> Boundary:
        """Go back to the last checkpoint in a new epoch. Returns the boundary to continue at.

        Args:
            cause: the failure that leads to it; None if there was none, as when tasks move to a new container.

        Raises:
            FencedError: another driver has claimed the log.
            PenstockError: there were too many failures, or one that cannot be tried again.
        """
        self._board.update(phase="restoring")
        self._board.metrics.rewinds.inc()
        return self._enter(None, cause)

    def wind_down(self) -> None:
        """After the last checkpoint, let containers finish their background work. An error is logged: the work would
        only have made the next start quicker."""
        try:
            self._fleet.ask(WIND_DOWN, self.claim.epoch, WindDown())
        except errors.PenstockError as error:
            logger.warning("a container did not end its work in the background: %s", error)

    def _enter(self, claim: Claim | None, failure: errors.RetryableError | None) -> Boundary:
        """Try until an epoch is open. `claim`: one that exists already, and under which nothing is in the log."""
        boundary = self._start_boundary()
        while not self._stop.is_set():
            if claim is None:
                self._commits.abandon()
            if failure is not None:
                then = f"; going back to checkpoint {self._board.last_checkpoint}" if self._started else ""
                self._failures.count(failure, then=then)
            try:
                own = None
                if claim is None:
                    self.claim = self._job.log.claim(self.claim.run_id)
                    own = self._own_checkpoint()
                boundary = self._start_boundary() if own is None else Boundary.of(own)
                origin = self._job.start.origin if own is None else Origin(own)
                self._board.update(epoch=self.claim.epoch)
                self._commits.enter(self.claim, origin.record)
                if own is not None:
                    self._board.update(last_checkpoint=str(own.id))
                boundary = self._open(origin, boundary)
                for part in self._wings:
                    part.enter(self.claim.epoch)
                if not self._started:
                    self._write_start(boundary, written=own is not None)
                break
            except errors.RetryableError as error:
                claim, failure = None, error
        self._board.update(phase="running")
        return boundary

    def _own_checkpoint(self) -> CheckpointRecord | None:
        """The last checkpoint, if this run wrote it; None before its start checkpoint is in the log."""
        latest = self._job.log.latest_before(self.claim)
        if latest is not None and latest.epoch >= self._job.claim.epoch:
            return latest
        if self._started:
            raise errors.PenstockError("the log has no checkpoint although this run wrote one")
        return None

    def _start_boundary(self) -> Boundary:
        """The boundary of the start plan: its positions, and the batch and the times of the checkpoint that it
        chose."""
        start = self._job.start
        record, times = start.restore_from, start.times
        if record is None:
            return Boundary(start.positions, intermediate=self._job.plan.intermediate)
        return Boundary(
            start.positions,
            record.batch,
            record.batch_time_ms,
            times.event_times,
            times.watermarks,
            times.ended_inputs,
            intermediate=self._job.plan.intermediate,
            lost={} if start.clears_state else record.lost,
            offered=start.offered,
            moved=start.moved,
            quiet_until=start.quiet_until,
        ).or_loud()

    def _open(self, origin: Origin, boundary: Boundary) -> Boundary:
        """Fence the outputs, wait until nothing of the old epoch runs, and restore every task. Returns the boundary
        with the timers that are due in the stores."""
        job, epoch = self._job, self.claim.epoch
        job.before_fences()
        self._fleet.drop_lost()  # first: one that stands still may have an output's file locked
        job.fence_outputs(epoch)
        job.admins.prepare(epoch)
        self._runner.cancel_rest()
        self._runner.await_quiet()
        self._fleet.ensure()
        job.put_probe(epoch)
        opening = self._opening(origin, boundary)
        try:
            with self._board.metrics.restore_ns.time():
                next_due = self._fleet.open(
                    opening,
                    job.container_package(epoch),
                    lambda done: self._board.update(restored_bytes=done),
                )
        except errors.CorruptError as error:
            job.log.check_owner()  # a newer owner may have deleted what the markers name
            if elsewhere := job.plan.markers_elsewhere(origin):
                raise errors.CorruptError(f"{error}{elsewhere}") from error
            raise
        if silent := set(range(job.settings.tasks)) - next_due.keys():
            raise errors.ContainerLostError(f"no container has said what waits in the stores of tasks {sorted(silent)}")
        job.remove_probe(epoch)
        if opening.checkpoint_id is not None and opening.markers:
            for part in self._wings:
                part.restored(epoch, opening.checkpoint_id, opening.markers)
        return replace(boundary, next_due=earliest(next_due.values()))

    def _opening(self, origin: Origin, boundary: Boundary) -> EpochOpening:
        checkpoint_id = None if origin.record is None else str(origin.record.id)
        markers = self._job.plan.markers_of(origin)
        return EpochOpening(self.claim.epoch, boundary.batch, checkpoint_id, markers, origin.restored)

    def _write_start(self, boundary: Boundary, *, written: bool) -> None:
        """Write the start checkpoint, then delete the startpoints that it took.

        The record holds the start of the run: before it the requests are untouched, after it they are done, whichever
        driver deletes them. No batch runs before they are gone: once the record is pruned, nothing says that it took
        them.
        """
        start = self._job.start
        if not written:
            request = CommitRequest(
                boundary, "start", consumed_startpoints=start.consumed, reset_operators=start.reset.operators
            )
            self._commits.make(request)
        self._job.startpoints.delete(start.requests)
        self._started = True


_LOSS_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class GoodRun:
    """A run whose attempts End may apply."""

    batch: Batch
    outcome: SuccessfulBatch
    reports: tuple[Report, ...]
    began: float
    """On the run's monotonic clock, in seconds."""


class BatchRuns:
    """Repeats a batch until one run succeeds."""

    def __init__(self, run: RunContext, commits: CommitSchedule, failures: RunFailures) -> None:
        self._topology = run.job.topology
        self._tasks = run.job.settings.tasks
        self._named = run.job.streams.named
        self._fleet = run.fleet
        self._runner = run.runner
        self._commits = commits
        self._failures = failures
        self._stop = run.stop.immediate
        self._clock = run.clock
        self.begun = 0
        """The number of runs of the next batch that have begun in this epoch. No two may have the same number: a
        late attempt of one must not pass for an attempt of the other."""

    def until_good(self, epoch: int, batch: Batch, planned: PlannedBatch) -> GoodRun | None:
        """Run the batch until a run succeeds; None if the job was told to stop at once.

        Raises:
            UserCodeError: the application failed.
            PenstockTimeoutError: something that fires, drains or is written takes longer than it may.
            ContainerLostError: a container was lost, or a store has to be restored.
            RetryableError: a system or store failed; planned again, the batch may succeed.
            PenstockError: something failed for good, or there were too many failures.
        """
        while not self._stop.is_set():
            batch = self._failures.suspects.watch(batch)
            began, self.begun = self._clock.monotonic(), batch.run
            try:
                reports = self._runner.run(epoch, batch, planned.ranges)
                outcome = self._decide(reports)
            except RunBrokenError as error:
                self._broken(error)
                outcome = None
            if outcome is not None:
                return GoodRun(batch, outcome, tuple(reports), began)
            batch = batch.next_run()
        return None

    def _decide(self, reports: list[Report]) -> SuccessfulBatch | None:
        """The successful outcome; None if the batch has to be run again."""
        match decide_outcome(reports, self._topology, self._tasks):
            case SuccessfulBatch() as outcome:
                return outcome
            case InconsistentReports(reason):
                self._failures.count(errors.RetryableError(reason))
                return None
            case UserCodeFailed(failed):
                raise errors.UserCodeError(self._named(failed))
            case JobFailed(kind, text):
                raise errors.KINDS.get(kind, errors.PenstockError)(text)

    def _broken(self, error: RunBrokenError) -> None:
        """Answer a run that broke off: a lost container means a new epoch, anything else another run of the batch."""
        if self._stop.is_set() or (isinstance(error, OtherWayError) and error.declined):
            return
        # A container that was killed and the run that broke on it fail at about the same time.
        self._clock.wait(self._stop, _LOSS_SECONDS)
        self._commits.look()  # one that failed has cancelled the run
        if (overdue := self._fleet.overdue) is not None:
            raise errors.PenstockTimeoutError(overdue) from error
        if self._fleet.any_lost:
            raise errors.ContainerLostError(self._fleet.loss()) from error
        if isinstance(error, OtherWayError):
            self._failures.suspects.look()
            logger.warning("the batch runs again as a Spark job: %s", error)
        else:
            self._failures.count(error)
        self._runner.await_quiet()
