"""Epochs: claim the log, decide what state to begin with, open the epoch everywhere.

A start and a rewind are the same steps. They differ in the origin: until the run's own start checkpoint is in the
log, an epoch begins with the choice of the start plan; every later one with the last checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from penstock.checkpoint.origin import Origin
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.driver.commit.record import CommitRequest
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.context import RunContext
from penstock.driver.feed.boundary import Boundary
from penstock.driver.guards.failures import RunFailures
from penstock.driver.part import DriverPart
from penstock.errors import ContainerLostError, CorruptError, PenstockError, RetryableError
from penstock.runtime.stage.outcome import earliest
from penstock.wire.calls import WIND_DOWN
from penstock.wire.ports import EpochOpening
from penstock.wire.protocol import WindDown

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

    def rewind(self, cause: RetryableError | None = None) -> Boundary:
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
        except PenstockError as error:
            logger.warning("a container did not end its work in the background: %s", error)

    def _enter(self, claim: Claim | None, failure: RetryableError | None) -> Boundary:
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
            except RetryableError as error:
                claim, failure = None, error
        self._board.update(phase="running")
        return boundary

    def _own_checkpoint(self) -> CheckpointRecord | None:
        """The last checkpoint, if this run wrote it; None before its start checkpoint is in the log."""
        latest = self._job.log.latest_before(self.claim)
        if latest is not None and latest.epoch >= self._job.claim.epoch:
            return latest
        if self._started:
            raise PenstockError("the log has no checkpoint although this run wrote one")
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
        except CorruptError as error:
            if elsewhere := job.plan.markers_elsewhere(origin):
                raise CorruptError(f"{error}{elsewhere}") from error
            raise
        if silent := set(range(job.settings.tasks)) - next_due.keys():
            raise ContainerLostError(f"no container has said what waits in the stores of tasks {sorted(silent)}")
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
