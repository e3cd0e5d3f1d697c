"""Puts a run loop together."""

from __future__ import annotations

from penstock.api.side_inputs import PushedTable
from penstock.checkpoint.log import CheckpointLog
from penstock.drain.shown import ShownDrain
from penstock.driver.batch_runs import BatchRuns
from penstock.driver.bootstrap import SideBootstrap
from penstock.driver.collection import Collection
from penstock.driver.commit import CommitCoordinator
from penstock.driver.commit_policy import CommitPolicy
from penstock.driver.commits import Commits
from penstock.driver.drain import Drain
from penstock.driver.drain_report import DrainReport
from penstock.driver.drain_tally import DrainTally
from penstock.driver.epochs import Epochs
from penstock.driver.event_time import EventTime
from penstock.driver.failures import Failures
from penstock.driver.feed import Feed, OffsetFeed
from penstock.driver.input_watch import InputWatch
from penstock.driver.lease_gate import LeaseGate
from penstock.driver.loss_report import LossReport
from penstock.driver.outages import Outages
from penstock.driver.outbox_garbage import OutboxGarbage
from penstock.driver.owed import Debts
from penstock.driver.parts import RunParts
from penstock.driver.ports import BatchRunner, Fleet, PublishedTables
from penstock.driver.prepare import PreparedJob
from penstock.driver.progress import ProgressBoard
from penstock.driver.publishing import Publishing
from penstock.driver.record import Recorder
from penstock.driver.reporter import ProgressReporter
from penstock.driver.run_loop import RunLoop
from penstock.driver.standbys import standby_facts
from penstock.driver.stop import StopRequest
from penstock.driver.tables import NothingPublished, Tables
from penstock.driver.truncation import Truncation
from penstock.metadata.lease import LeaseKeeper
from penstock.plan.input_order import InputOrder
from penstock.plan.pace import BatchBounds


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
    tally, shown = DrainTally(job.topology), ShownDrain(job.objects, job.paths)
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
    """What looks whether the streams of the job are those that it was prepared with."""
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
        skipped=frozenset(stream for stream in job.inputs if job.config.skips_lost(stream)),
        order=InputOrder.of(job.inputs, job.config),
    )
