"""Puts a run loop together."""

from __future__ import annotations

from penstock.api.state.side_inputs import PushedTable
from penstock.batch.input_order import InputOrder
from penstock.batch.pace import BatchBounds
from penstock.checkpoint.log import CheckpointLog
from penstock.drain.driver.drain import Drain
from penstock.drain.driver.report import DrainReport
from penstock.drain.driver.tally import DrainTally
from penstock.drain.shown import drain_board
from penstock.driver.commit.collection import Collection
from penstock.driver.commit.commit import CommitCoordinator
from penstock.driver.commit.policy import CommitPolicy
from penstock.driver.commit.record import Recorder
from penstock.driver.commit.truncation import Truncation
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import Feed, OffsetFeed
from penstock.driver.feed.stop import StopRequest
from penstock.driver.guards.failures import Failures
from penstock.driver.guards.input_watch import InputWatch
from penstock.driver.guards.lease_gate import LeaseGate
from penstock.driver.guards.outages import Outages
from penstock.driver.loop.batch_runs import BatchRuns
from penstock.driver.loop.commits import Commits
from penstock.driver.loop.epochs import Epochs
from penstock.driver.loop.parts import RunParts
from penstock.driver.loop.reporter import ProgressReporter
from penstock.driver.loop.run_loop import RunLoop
from penstock.driver.show.loss_report import LossReport
from penstock.driver.show.progress import ProgressBoard
from penstock.job.lease import LeaseKeeper
from penstock.outbox.driver.garbage import OutboxGarbage
from penstock.outbox.driver.publishing import Publishing
from penstock.side.driver.bootstrap import SideBootstrap
from penstock.standby.driver.followers import standby_facts
from penstock.start.prepare import PreparedJob
from penstock.start.streams.owed import Debts
from penstock.tables.driver.run import NothingPublished, Tables
from penstock.wire.ports import BatchRunner, Fleet, PublishedTables


def assemble(
    job: PreparedJob,
    log: CheckpointLog,
    keeper: LeaseKeeper,
    fleet: Fleet,
    runner: BatchRunner,
    board: ProgressBoard,
    stop: StopRequest,
    feed: Feed | None = None,
    published: PublishedTables | None = None,
    debts: Debts | None = None,
) -> RunLoop:
    """The run loop of a prepared job on these containers and this runner. Without a feed it reads the job's inputs;
    `published` has the versions of its pushed tables, `debts` what is to be published."""
    task, tasks, clock = job.config.task, job.settings.tasks, job.clock
    failures = Failures(job.config.job.retry_max, fleet, runner, board, Outages(board, stop, clock))
    gate = LeaseGate(keeper, job.config.job.lease_ms, clock)
    debts = debts or Debts(log, job.uid, job.paths)
    recorder = Recorder(
        log,
        job.layout,
        tasks,
        task,
        job.intermediate_layout,
        job.recorded_identities,
        owed=debts.now,
        publisher=job.publisher,
    )
    garbage = OutboxGarbage(job.objects, job.paths, log)
    collection = Collection(log, job.admins, garbage, Truncation(job.streams, job.writer))
    publishing = Publishing(debts, fleet, task.commit_timeout_ms, board, stop.immediate, clock, job.show_published)
    watch = input_watch(job)
    coordinator = CommitCoordinator(
        recorder,
        fleet,
        collection,
        runner.cancel,
        clock,
        standbys=job.config.job.standbys > 0,
        publishing=publishing,
        confirm=watch.confirm,
    )
    policy = CommitPolicy.of(task)
    commits = Commits(coordinator, policy, task.commit_timeout_ms, fleet, gate, failures, board, stop.immediate, clock)
    board.metrics.containers = fleet.metrics
    board.standbys = lambda: standby_facts(fleet.standby_states())
    board.waits_for = lambda: runner.waits_for() or fleet.waits_for()
    bootstrap = SideBootstrap(job.topology.graph, fleet, board, stop, clock)
    feed = feed or offset_feed(job, watch)
    tables = Tables(
        [spec.name for spec in job.topology.graph.stores if isinstance(spec.side, PushedTable)],
        published or NothingPublished(),
        fleet,
        board,
        job.config.side_inputs.bootstrap_timeout_ms,
        stop,
    )
    tally, shown = DrainTally(job.topology), drain_board(job.objects, job.paths)
    report = DrainReport(job.claim.run_id, tally, shown, board, clock)
    return RunLoop(
        RunParts(
            feed=feed,
            drain=Drain(job.drains, job.claim.run_id, job.config.job.drain_poll_ms, stop, board, report),
            epochs=Epochs(
                job, log, fleet, runner, commits, failures, board, tables, stop.immediate, bootstrap, publishing
            ),
            commits=commits,
            runs=BatchRuns(job.topology, tasks, fleet, runner, commits, failures, stop.immediate, clock),
            fleet=fleet,
            failures=failures,
            gate=gate,
            reporter=ProgressReporter(job, feed, fleet, commits, board),
            losses=LossReport(board.metrics, lambda stream: job.streams.systems[stream.system].dense_offsets),
            board=board,
            tables=tables,
            stop=stop,
            topology=job.topology,
            clock=clock,
        )
    )


def input_watch(job: PreparedJob) -> InputWatch:
    """Checks that the streams of the job are those that it was prepared with."""
    partitions = {at.ssp for at in job.start.positions}
    return InputWatch(job.streams, job.identities, partitions, job.settings.output_partitions, job.clock)


def offset_feed(job: PreparedJob, watch: InputWatch) -> OffsetFeed:
    """The feed that `job.batch.*` describes."""
    settings = job.config.job
    bounds = BatchBounds(settings.batch_max_messages, settings.batch_max_bytes, settings.batch_target_ms)
    return OffsetFeed(
        watch.ends,
        job.topology.graph,
        bounds,
        settings.batch_interval_ms,
        job.until,
        job.clock,
        EventTime.of(job.topology.graph, job.config),
        close=job.close,
        skipped=frozenset(stream for stream in job.inputs if job.config.stream(stream).skips_lost),
        order=InputOrder.of(job.inputs, job.config),
    )
