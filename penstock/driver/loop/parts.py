"""Puts the parts of a run together. The parts of wings are found by name: no module of the driver knows one."""

from __future__ import annotations

from typing import TypeVar

from penstock.batch.input_order import InputOrder
from penstock.batch.pace import BatchBounds
from penstock.driver.commit.collection import Collection
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.driver.commit.record import Recorder
from penstock.driver.commit.schedule import CommitSchedule
from penstock.driver.commit.truncation import Truncation
from penstock.driver.context import RunContext
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import BatchRhythm, Feed, OffsetFeed
from penstock.driver.guards.failures import RunFailures
from penstock.driver.guards.input_watch import InputWatch, NextStart
from penstock.driver.guards.lease_gate import LeaseGate
from penstock.driver.loop.batch_runs import BatchRuns
from penstock.driver.loop.epochs import Epochs
from penstock.driver.loop.reporter import ProgressReporter
from penstock.driver.part import DriverPart, driver_parts
from penstock.driver.show.loss_report import LossReport
from penstock.driver.show.positions import shown_positions
from penstock.driver.show.run_state import lags_of, run_state
from penstock.start.job import ClaimedJob

P = TypeVar("P", bound=DriverPart)


class RunParts:
    """The parts of one run, for its loop."""

    def __init__(self, run: RunContext, feed: Feed | None = None) -> None:
        """
        Args:
            feed: chooses the batches; by default it reads the job's inputs.
        """
        self.run = run
        job, fleet, board, clock = run.job, run.fleet, run.board, run.clock
        watch = input_watch(job, _next_start(run))
        self.feed = feed or offset_feed(job, watch)
        self.failures = RunFailures(run)
        self.gate = LeaseGate(run.keeper, job.config.job.lease_ms, clock)
        self.wings = driver_parts(run)
        recorder = Recorder(
            job.log,
            job.plan.layout,
            job.settings.tasks,
            job.config.task,
            job.plan.intermediate_layout,
            job.plan.recorded_identities,
            state_ids=job.topology.graph.state_ids(),
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
