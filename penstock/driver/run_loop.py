"""The run loop: ask the feed what to do, run the batch, apply it, commit when it is due.

It has one thread. Every failure is answered here: run the batch again, go back to the last checkpoint in a new
epoch, or end the run with the cause. Its parts are the choice of batches, epochs, commits and, behind two ports,
containers and Spark. `RunParts` puts them together. The parts of wings are found by name: no module of the driver
knows one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from penstock.base.retry import SYSTEM_CLOCK, interruptible
from penstock.batch.portions import BatchBounds, InputOrder
from penstock.checkpoint.sections import Section
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.driver.commit.record import Collection, CommitRequest, Recorder, Truncation, shown_positions
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.epochs import BatchRuns, Epochs
from penstock.driver.failures import RunFailures
from penstock.driver.feed.boundary import Boundary, DrainedOperators, written_in
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import BatchRhythm, End, Feed, Idle, OffsetFeed, PlannedBatch, Skip
from penstock.driver.part import DriverPart, RunContext, driver_parts, sections_of
from penstock.driver.reporter import LossReport, ProgressReporter
from penstock.driver.show.metrics import lags_of, run_state
from penstock.driver.show.progress import BatchTimer
from penstock.driver.watches import InputWatch, LeaseGate, NextStart
from penstock.errors import ContainerLostError, FencedError, NotFoundError, RetryableError, UserCodeError
from penstock.start.job import ClaimedJob
from penstock.wire.protocol import END, EndBatch

P = TypeVar("P", bound=DriverPart)


class RunParts:
    """The parts of one run, for its loop."""

    def __init__(self, run: RunContext, feed: Feed | None = None) -> None:
        """
        Args:
            feed: chooses the batches, unless a wing does; by default it reads the job's inputs.
        """
        self.run = run
        job, fleet, board, clock = run.job, run.fleet, run.board, run.clock
        watch = input_watch(job, _next_start(run))
        self.wings = driver_parts(run)
        self.feed = feed or offset_feed(job, watch)
        for part in self.wings:
            self.feed = part.feed(self.feed, watch.ends)
        self.failures = RunFailures(run)
        self.gate = LeaseGate(run.keeper, job.config.job.lease_ms, clock)
        recorder = Recorder(
            job.log,
            job.plan.layout,
            job.settings.tasks,
            job.config.task,
            job.plan.intermediate_layout,
            job.plan.recorded_identities,
            state_ids=job.topology.graph.state_ids(),
            inputs={op.id: op.stream for op in job.topology.graph.inputs},
        )
        coordinator = CommitCoordinator(
            recorder,
            fleet,
            [
                Collection(job.log, job.admins, self.wings, Truncation(job.streams, job.writer)),
                *shown_positions(job.config.task.commit_group, job.streams),
            ],
            run.runner.cancel,
            clock,
            wings=self.wings,
            confirm=watch.confirm,
        )
        self.commits = CommitSchedule(run, coordinator, self.gate, self.failures)
        self.epochs = Epochs(run, self.commits, self.failures, self.wings)
        self.runs = BatchRuns(run, self.commits, self.failures)
        self.reporter = ProgressReporter(run, self.feed, self.commits)
        self.losses = LossReport(board.metrics, lambda stream: job.streams.systems[stream.system].dense_offsets)
        board.beats = fleet.beats
        board.metrics.containers = fleet.metrics
        board.metrics.state = lambda: run_state(
            board.facts(), lags_of(board.positions, board.ends, job.streams.systems)
        )
        board.processed = fleet.processed_messages
        board.waits_for = lambda: run.runner.waits_for() or fleet.waits_for()

    def of(self, kind: type[P]) -> P:
        """A wing's part of this class."""
        return next(part for part in self.wings if isinstance(part, kind))


def input_watch(job: ClaimedJob, next_start: NextStart | None = None) -> InputWatch:
    """Checks that the streams of the job are those that it was prepared with."""
    partitions = {at.ssp for at in job.start.positions}
    return InputWatch(
        job.streams, job.plan.identities, partitions, job.settings.output_partitions, job.clock, next_start
    )


def _next_start(run: RunContext) -> NextStart | None:
    if run.check_next is None or run.job.plan.until is not None:
        return None
    return NextStart(run.check_next, run.stop.begin_again)


def offset_feed(job: ClaimedJob, watch: InputWatch) -> OffsetFeed:
    """The feed that `job.batch.*` describes."""
    settings = job.config.job
    bounds = BatchBounds(settings.batch_max_messages, settings.batch_max_bytes, settings.batch_target_ms)
    return OffsetFeed(
        watch.ends,
        job.topology.graph,
        bounds,
        BatchRhythm.of(settings),
        job.plan.until,
        job.clock,
        EventTime.of(job.topology.graph, job.config),
        close=job.plan.close,
        skipped=frozenset(stream for stream in job.plan.inputs if job.config.stream(stream).skips_lost),
        order=InputOrder.of(job.plan.inputs, job.config),
    )


logger = logging.getLogger(__name__)
_RETRY_SECONDS = 0.5


class RunLoop:
    """Runs one prepared job until it is stopped, finished, or cannot go on."""

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts
        self._run = parts.run
        self.boundary = Boundary({})
        self._versions: Mapping[str, int] = {}
        """Table → the version that the next batch reads."""

    @property
    def epoch(self) -> int:
        return self.parts.epochs.claim.epoch

    def run(self) -> None:
        """Run from the start checkpoint to the last commit. Raises the error that ended the run."""
        try:
            self.start()
            while not self.run_to_the_end():
                pass
        finally:
            self.close()

    def close(self) -> None:
        """Abandon the commit in flight, then end the parts of wings, the last one first. If one fails, the others end
        all the same. No call follows."""
        with ExitStack() as ends:
            for part in self.parts.wings:
                ends.callback(part.close)
            ends.callback(self.parts.commits.close)
            ends.callback(self.parts.reporter.close)

    def start(self) -> None:
        """Open the first epoch, and write its start checkpoint."""
        self._enter(self.parts.epochs.start())

    def run_to_the_end(self) -> bool:
        """Run batches until there is a reason to end, then the last commit. False if a container was lost during
        that commit: everything after the last checkpoint has to be processed again first."""
        run = self._run
        while not run.stop.immediate.is_set():
            ended = self._stop.is_set() or self.step()
            if ended and not self.boundary.partly_closed and not self._drains_first():
                break
        if run.stop.immediate.is_set():
            logger.warning("stopped at once; the last checkpoint is %s", run.board.last_checkpoint)
            return True
        return self.try_finish()

    def try_finish(self) -> bool:
        """As `finish`. False if a container was lost meanwhile: the job is back at its last checkpoint, and
        everything after it is to be processed again."""
        try:
            self.finish()
        except ContainerLostError as error:
            self.rewind(error)
            return False
        return True

    def finish(self) -> None:
        """Make the last commit, and do what may only follow it. Raises ContainerLostError if it has to be made
        again."""
        parts, run = self.parts, self._run
        run.board.update(phase="stopping")
        sections: dict[Section[Any], Any] = {}
        for part in parts.wings:
            sections |= sections_of(part, partial(part.last_commit, self.boundary))
        if self.boundary.closed:
            run.stop.is_last()
        goes_on = run.stop.goes_on
        parts.commits.make(CommitRequest(self.boundary, ended=None if goes_on else "stopped", sections=sections))
        if not goes_on:  # a request to drain that came meanwhile is for what follows
            for part in parts.wings:
                part.ended()
        run.board.update(drained=self.boundary.closing == "drained")
        parts.epochs.wind_down()

    @property
    def _stop(self) -> threading.Event:
        """The event that ends the run here. Nothing can be committed while the job is partly closed: it is closed
        first."""
        return self._run.stop.immediate if self.boundary.partly_closed else self._run.stop.graceful

    def _drains_first(self) -> bool:
        """True if the run was asked to drain before it came to its end, and does so now. A store that fails delays
        the end, because no later run would follow the request."""
        parts, run = self.parts, self._run
        while not run.stop.immediate.is_set():
            try:
                return any(part.before_the_end(self.boundary) for part in parts.wings)
            except RetryableError as error:
                logger.warning("the run does not end yet, because it cannot find out whether it is to drain: %s", error)
                run.clock.wait(run.stop.immediate, _RETRY_SECONDS)
                parts.gate.await_batch(run.stop.immediate, lambda: None)  # a store cannot be away forever
        return False

    def rewind(self, cause: RetryableError | None) -> None:
        """Go back to the last checkpoint, in a new epoch. `cause`: the failure that leads to it, if there was one."""
        self._enter(self.parts.epochs.rewind(cause))

    def ask_to_drain(self, *, at_start: bool = False) -> None:
        """Ask the run to drain. May be called from any thread. Raises PenstockError as `DriverPart.drain`."""
        for part in self.parts.wings:
            part.drain(at_start=at_start)

    @property
    def drains(self) -> bool:
        """True if the run drains, and has not come to its end."""
        draining = self._draining
        return draining is not None and not draining.is_done_at(self.boundary)

    @property
    def _draining(self) -> DrainedOperators | None:
        return next((found for part in self.parts.wings if (found := part.draining) is not None), None)

    def commit(self) -> None:
        """Commit everything that has ended, and wait until the checkpoint is complete."""
        self.parts.commits.make(CommitRequest(self.boundary))

    def try_commit(self) -> bool:
        """As `commit`. False if a container was lost meanwhile: the job is back at its last checkpoint, and
        everything after it is to be processed again."""
        try:
            self.commit()
        except ContainerLostError as error:
            if not self._run.stop.immediate.is_set():
                self.rewind(error)
            return False
        return True

    def await_commit(self) -> None:
        self.parts.commits.wait()

    def step(self) -> bool:
        """Do what the feed says, and answer the failures in it. True when there is nothing more to do."""
        parts, run = self.parts, self._run
        try:
            parts.commits.look()
            if run.fleet.any_lost:
                raise ContainerLostError(run.fleet.loss())
            for part in parts.wings:
                part.before_step(self.epoch)
            if not self.boundary.ends and (newcomers := run.fleet.newcomers()):
                self._welcome(newcomers)
            return self._step()
        except (FencedError, UserCodeError):
            raise
        except ContainerLostError as error:
            if run.stop.immediate.is_set():
                return True
            self.rewind(error)
        except RetryableError as error:  # a system or store that may answer the next time
            if self._stop.is_set():
                return False
            parts.failures.count(error)
            run.clock.wait(self._stop, _RETRY_SECONDS)
        return False

    def _welcome(self, newcomers: list[str]) -> None:
        """Take in executors, containers or ready standbys: commit, and restore in a new epoch in which they have
        their share."""
        logger.warning("%s came up: the job commits, and begins a new epoch with them", ", ".join(newcomers))
        self.commit()
        self.rewind(None)

    def _step(self) -> bool:
        parts, run = self.parts, self._run
        if not parts.gate.await_batch(self._stop, parts.commits.look):
            return True
        if not parts.runs.begun:  # a batch that has begun is repeated with the versions that it had
            self._versions = {name: each for part in parts.wings for name, each in part.versions().items()}
        try:
            begins_anew = any(part.before_batch() for part in parts.wings)
        except RetryableError as error:  # it delays the run, but however often it happens, it does not end it
            logger.warning("no batch begins yet, because the run cannot find out whether it is to drain: %s", error)
            run.clock.wait(self._stop, _RETRY_SECONDS)
            return False
        if begins_anew:
            self.rewind(None)
            return False
        with interruptible(self._stop):
            following = self._next()
        match following:
            case End():
                return True
            case Idle(until, looked):
                if looked:
                    parts.failures.none()
                parts.commits.if_due(self.boundary, BatchTimer())
                run.clock.wait(run.stop.graceful, max(0.0, until - run.clock.monotonic()))
                return False
            case PlannedBatch() as planned:
                return self._run_batch(planned)

    def _next(self) -> PlannedBatch | Idle | End:
        """Choose the action at this boundary, or at the one after messages that were lost."""
        parts = self.parts
        while True:
            draining, feed = self._draining, parts.feed
            found = feed.next(self.boundary) if draining is None else feed.drain(self.boundary, draining.operators)
            if not isinstance(found, Skip):
                return found
            self.boundary = self.boundary.without(found.losses)
            parts.losses.skipped(found.losses, self.boundary.lost)

    def _run_batch(self, planned: PlannedBatch) -> bool:
        """Run a batch until it has succeeded once, apply it, and commit if that is due. True if the job should end."""
        parts, run, before, watch = self.parts, self._run, self.boundary, BatchTimer()
        batch = before.next_batch(
            planned.moment, parts.runs.begun, planned.control, planned.closes, self._versions, planned.rests
        )
        try:
            with run.board.batch(batch.number, planned.ranges.messages):
                good = parts.runs.until_good(self.epoch, batch, planned)
        except NotFoundError:
            if not parts.feed.has_lost(planned.ranges):
                raise
            return False  # the batch is planned again, from what is there; its next run has another number
        if good is None:
            return True
        parts.failures.none()
        watch.lap("addBatch")
        outcome, ended = good.outcome, planned.moment.ended_inputs
        written = written_in(good.batch, outcome.appended, run.job.topology.graph.intermediates)
        after = before.after(
            good.batch, planned.ranges, outcome.inputs, outcome.next_due, ended, written, planned.offered
        )
        run.fleet.ask(END, self.epoch, EndBatch(good.batch, good.outcome.tokens))
        watch.lap("end")
        run.board.metrics.ended(good.reports, run.job.topology)
        for part in parts.wings:
            part.counted(good.reports, after, parts.commits.last_batch)
        parts.feed.ended((run.clock.monotonic() - good.began) * 1000, good.outcome.inputs)
        self._reach(after)
        run.board.uncommitted.batch_ended(SYSTEM_CLOCK.now_ms())
        if good.outcome.commit or (good.batch.culprits and good.outcome.dead_letters):  # no process ends for it again
            parts.commits.request()
        if not after.ends:  # otherwise the last commit follows
            parts.commits.if_due(self.boundary, watch)
        parts.reporter.ended(planned, good, before, self.boundary, watch)
        if good.outcome.shutdown:
            run.stop.is_last()
        return good.outcome.shutdown

    def _enter(self, boundary: Boundary) -> None:
        for part in self.parts.wings:
            part.begin(boundary)
        self.parts.feed.begin()
        self.parts.losses.begin(boundary.lost)
        self._reach(boundary)

    def _reach(self, boundary: Boundary) -> None:
        if self.boundary.quiet_until and not boundary.quiet_until:
            logger.info("all inputs are where they were before the startpoints: output is sent again from here on")
        self.boundary = boundary
        self._run.board.positions = boundary.positions
        self.parts.runs.begun = 0
