"""Repeats a batch until one run succeeds."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.batch.batch import Batch
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.context import RunContext
from penstock.driver.feed.planned import PlannedBatch
from penstock.driver.guards.failures import RunFailures
from penstock.errors import (
    KINDS,
    ContainerLostError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
    UserCodeError,
)
from penstock.runtime.reports import Report
from penstock.runtime.stage.outcome import (
    InconsistentReports,
    JobFailed,
    SuccessfulBatch,
    UserCodeFailed,
    decide_outcome,
)
from penstock.wire.ports import OtherWayError, RunBrokenError

logger = logging.getLogger(__name__)
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
                self._failures.count(RetryableError(reason))
                return None
            case UserCodeFailed(failed):
                raise UserCodeError(self._named(failed))
            case JobFailed(kind, text):
                raise KINDS.get(kind, PenstockError)(text)

    def _broken(self, error: RunBrokenError) -> None:
        """Answer a run that broke off: a lost container means a new epoch, anything else another run of the batch."""
        if self._stop.is_set() or (isinstance(error, OtherWayError) and error.declined):
            return
        # A container that was killed and the run that broke on it fail at about the same time.
        self._clock.wait(self._stop, _LOSS_SECONDS)
        self._commits.look()  # one that failed has cancelled the run
        if (overdue := self._fleet.overdue) is not None:
            raise PenstockTimeoutError(overdue) from error
        if self._fleet.any_lost:
            raise ContainerLostError(self._fleet.loss()) from error
        if isinstance(error, OtherWayError):
            self._failures.suspects.look()
            logger.warning("the batch runs again as a Spark job: %s", error)
        else:
            self._failures.count(error)
        self._runner.await_quiet()
