"""The run loop: plan a batch, run it as one Spark job, apply it, commit when it is due.

One thread owns the input positions, the epoch and the checkpoint log. Everything that may fail is answered here:
run the batch again, restore from the last checkpoint in a new epoch, or end the run with the cause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim, Detail, Ended
from penstock.engine.commit import Boundary, CommitCoordinator, Completed
from penstock.engine.directory import ContainerDirectory
from penstock.engine.gateway import spark_died
from penstock.engine.lineage import BatchPlan, run_batch
from penstock.engine.prepare import PreparedJob
from penstock.engine.progress import JobProgress, ProgressBoard, Stopwatch, now_text, source_progress
from penstock.engine.spark_errors import cause_of
from penstock.engine.worker import ContainerStage, Lane, SinkStage, SourceStage
from penstock.errors import (
    KINDS,
    ContainerLostError,
    FencedError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
    UserCodeError,
)
from penstock.metadata.lease import LeaseKeeper
from penstock.plan.pace import BatchBounds, Pace
from penstock.plan.positions import Positions, TaskSsp, to_positions
from penstock.plan.ranges import BatchRanges, advance, plan_ranges
from penstock.runtime.batch import Batch
from penstock.runtime.outcome import Inconsistent, JobFailed, Succeeded, UserCodeFailed, decide_outcome
from penstock.runtime.reports import Report

logger = logging.getLogger(__name__)
E = TypeVar("E", bound=Exception)
_QUIET_SECONDS = 60
_REPORT_SECONDS = 10.0
_RETRY_SECONDS = 0.5


class StopRequest:
    """How a run is asked to end: after the current batch with a commit, or at once."""

    def __init__(self) -> None:
        self.graceful = threading.Event()
        self.immediate = threading.Event()

    def request(self) -> None:
        """The first request is graceful, the second immediate."""
        if self.graceful.is_set():
            self.immediate.set()
        self.graceful.set()


class RunLoop:
    """Runs one prepared job until it is stopped, finished, or cannot go on."""

    def __init__(
        self,
        context: SparkContext,
        job: PreparedJob,
        log: CheckpointLog,
        keeper: LeaseKeeper,
        directory: ContainerDirectory,
        board: ProgressBoard,
        stop: StopRequest,
    ) -> None:
        self._context = context
        self._job = job
        self._log = log
        self._keeper = keeper
        self._directory = directory
        self._board = board
        self._stop = stop
        self._commits = CommitCoordinator(
            log, directory, job.layout, job.settings.tasks, job.config.task, job.admins, self.cancel
        )
        self._claim: Claim = job.claim
        self._positions: dict[TaskSsp, int] = dict(job.start.positions)
        self._until = job.until
        settings = job.config.job
        self._bounds = BatchBounds(settings.batch_max_messages, settings.batch_max_bytes, settings.batch_target_ms)
        self._pace = Pace.first(self._bounds)
        self._run_began = 0.0
        """When the current run of the current batch began; on the monotonic clock."""
        restored = job.start.restore_from
        self._batch = restored.batch if restored else 0
        self._batch_time_ms = restored.batch_time_ms if restored else 0
        self._run = 0
        self._failures = 0
        self._total_rows = 0
        self._commit_requested = False
        self._committed_at = time.monotonic()
        self._last_commit: Completed | None = None
        self._committed_batch = -1
        """The batch of the last commit that began in this epoch."""
        self._in_spark = False
        """Whether a Spark job runs, or is about to."""
        self._group = f"penstock-{job.paths.root}-{job.claim.run_id}"

    def run(self) -> None:
        """From the start checkpoint to the last commit. Raises the error that ended the run."""
        self._context.setJobGroup(self._group, f"Penstock {self._job.paths.root}", interruptOnCancel=True)
        try:
            self._start()
            while not self._run_to_the_end():
                pass
        finally:
            self._commits.close()

    def _run_to_the_end(self) -> bool:
        """Batches until there is a reason to end, then the last commit. False if a container was lost during that
        commit: what was not committed has to be processed again first."""
        finished = False
        while not finished and not self._stop.graceful.is_set():
            finished = self._guarded_step()
        if self._stop.immediate.is_set():
            logger.warning("stopped at once; the last checkpoint is %s", self._board.last_checkpoint)
            return True
        self._board.update(phase="stopping")
        try:
            self._await_commit()
            self._commit(ended="stopped")
            self._directory.finish(self._claim.epoch)
        except ContainerLostError as error:
            self._rewind(error)
            return False
        return True

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._claim.epoch

    def cancel(self) -> None:
        """Cancel the running Spark job, from another thread; there may be none."""
        if self._in_spark:
            self._cancel_group()

    def _cancel_group(self) -> None:
        try:
            self._context.cancelJobGroup(self._group)
        except Exception as error:  # Spark is ending or dead, and its jobs with it: the loop notices that itself
            logger.debug("the Spark job was not cancelled: %s", error)

    def _cancel_rest(self) -> None:
        """Cancel what of the last Spark job still runs; asked to cancel nothing, Spark logs a warning."""
        status = self._context.statusTracker()
        if set(status.getJobIdsForGroup(self._group)) & set(status.getActiveJobsIds()):
            self._cancel_group()

    # The start, and a new epoch.

    def _start(self) -> None:
        """Open the first epoch and write the start checkpoint; then the startpoints that it took are deleted.

        However often it is tried, where it begins was decided once. It is the one record that says so: before it the
        requests are untouched, after it they are done, whoever deletes them.
        """
        start = self._job.start
        self._board.update(phase="restoring" if start.restore_from else "starting")
        origin, empty = start.restore_from, start.clears_state
        self._commits.last = origin
        failure: RetryableError | None = None
        while not self._stop.immediate.is_set():
            try:
                if failure is not None:
                    self._commits.abandon()
                    self._count_failure(failure)
                    self._claim = self._log.claim(self._claim.run_id)
                    latest = self._log.latest_before(self._claim)
                    if latest is not None and latest.epoch >= self._job.claim.epoch:
                        # This run's own start checkpoint is in the log already; its state is the one to restore.
                        origin, empty = latest, False
                        self._commits.last = latest
                self._open_epoch(origin, empty=empty)
                self._commit(detail="start", consumed_startpoints=start.consumed)
                # No batch before they are gone: once its record is pruned, nobody would know that it took them.
                self._job.startpoints.delete(start.requests)
                break
            except RetryableError as error:
                failure = error
        self._board.update(phase="running")

    def _welcome(self, newcomers: list[str]) -> None:
        """Executors have come: commit, and restore in a new epoch in which they have their share of the tasks."""
        logger.warning("%s came up: tasks move there from checkpoint to checkpoint", ", ".join(newcomers))
        self._await_commit()
        self._commit()
        self._rewind(None)

    def _rewind(self, cause: RetryableError | None) -> None:
        """Everything goes back to the last checkpoint, in a new epoch: a container is lost, or refused End. Without a
        cause it is no failure."""
        if cause is not None:
            self._check_spark(cause)
        self._board.update(phase="restoring")
        failure = cause
        while not self._stop.immediate.is_set():
            self._commits.abandon()
            if failure is not None:
                self._count_failure(failure, then=f"; going back to checkpoint {self._board.last_checkpoint}")
            try:
                self._claim = self._log.claim(self._claim.run_id)
                record = self._log.latest_before(self._claim)
                if record is None:
                    raise PenstockError("the log has no checkpoint although this run wrote one")
                self._commits.last = record
                self._positions = to_positions(record.next_offsets)
                self._batch, self._batch_time_ms, self._run = record.batch, record.batch_time_ms, 0
                self._committed_batch = record.batch
                self._board.update(last_checkpoint=str(record.id))
                self._open_epoch(record)
                break
            except RetryableError as error:
                failure = error
        self._board.update(phase="running")

    def _open_epoch(self, record: CheckpointRecord | None, *, empty: bool = False) -> None:
        """Fence the outputs, wait until nothing of the old epoch runs in Spark, and restore every task; `empty`: go on
        from the checkpoint with empty stores, which every backend then begins anew."""
        self._job.fence_outputs(self._claim.epoch)
        self._job.admins.prepare(self._claim.epoch)
        self._cancel_rest()
        self._directory.drop_lost()
        self._await_quiet_spark()
        self._directory.ensure()
        self._job.put_probe(self._claim.epoch)
        self._directory.open(
            self._claim.epoch,
            self._batch,
            None if record is None else str(record.id),
            {} if empty else None if record is None else self._job.markers_of(record),
            [] if empty or record is None else list(record.stores),
            self._job.container_package(self._claim.epoch),
            lambda done: self._board.update(restored_bytes=done),
        )
        self._job.remove_probe(self._claim.epoch)

    def _await_quiet_spark(self) -> None:
        """No task of an old job of this run may run beside an epoch's first batch.

        Spark may need `spark.network.timeout` to notice that an executor has ended.
        """
        timeout_s = self._quiet_timeout_s()
        begun = time.monotonic()
        report_at = begun + _REPORT_SECONDS
        while active := self._active_tasks():
            now = time.monotonic()
            if self._directory.any_lost:
                raise ContainerLostError(self._directory.loss())
            if now - begun > timeout_s:
                raise PenstockTimeoutError(
                    f"Spark still runs {active} tasks {timeout_s:.0f} s after their job was cancelled. Their executors "
                    "neither answer nor end: end them, and start the job again"
                )
            if now > report_at:
                logger.warning(
                    "waiting for %d tasks of the cancelled batch to end in Spark, for at most %.0f s more",
                    active,
                    timeout_s - (now - begun),
                )
                report_at = now + _REPORT_SECONDS
            if self._stop.immediate.wait(0.02):
                return

    def _quiet_timeout_s(self) -> float:
        """As long as Spark takes to notice a lost executor, and some more."""
        jvm: Any = self._context._jvm  # noqa: SLF001
        text = self._context.getConf().get("spark.network.timeout", "120s")
        return float(jvm.org.apache.spark.network.util.JavaUtils.timeStringAsSec(text)) + _QUIET_SECONDS

    def _active_tasks(self) -> int:
        """Tasks of the job's last Spark job that still run; the ones before had ended when it began."""
        status = self._context.statusTracker()
        jobs = sorted(status.getJobIdsForGroup(self._group))[-1:]
        infos = [status.getJobInfo(job) for job in jobs]
        stages = [status.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage)

    # One step.

    def _guarded_step(self) -> bool:
        """A step, with the answer to what may fail in it. True when there is nothing more to do."""
        try:
            self._look_at_commit()
            if self._directory.any_lost:
                raise ContainerLostError(self._directory.loss())
            if newcomers := self._directory.newcomers():
                self._welcome(newcomers)
            return self._step()
        except (FencedError, UserCodeError):
            raise
        except ContainerLostError as error:
            if self._stop.immediate.is_set():
                return True
            self._rewind(error)
            return False
        except RetryableError as error:  # a system or store that may answer the next time
            self._count_failure(error)
            self._stop.graceful.wait(_RETRY_SECONDS)
            return False

    def _step(self) -> bool:
        if not self._await_lease():
            return True
        ends = self._job.ends()
        ranges = plan_ranges(self._positions, ends, self._pace, self._until)
        latest = {ssp: end.upcoming for ssp, end in ends.items()}
        if not ranges:
            if self._until is not None:
                return True
            self._commit_if_due(Stopwatch())
            self._stop.graceful.wait(self._job.config.job.batch_interval_ms / 1000)
            return False
        return self._run_batch(BatchRanges.group(ranges, self._job.inputs), latest)

    def _run_batch(self, planned: BatchRanges, latest: Mapping[SystemStreamPartition, int]) -> bool:
        """Run a batch until it has succeeded once; apply it; commit if that is due. True if the job should end."""
        watch = Stopwatch()
        batch = Batch(self._batch + 1, self._run, max(self._batch_time_ms, time.time_ns() // 1_000_000))
        self._board.update(running=(batch.number, planned.messages))
        try:
            outcome = self._run_until_good(batch, planned)
        finally:
            self._board.update(running=None)
        if outcome is None:
            return True
        watch.lap("addBatch")
        self._directory.end(self._claim.epoch, batch, outcome.tokens)
        watch.lap("end")
        took_ms = (time.monotonic() - self._run_began) * 1000
        sizes = planned.sizes(outcome.input_bytes)
        self._pace = self._pace.after(self._bounds, took_ms, planned.messages, sizes)
        before = self._positions
        self._positions = advance(before, planned.ranges)
        self._batch, self._batch_time_ms, self._run = batch.number, batch.time_ms, 0
        self._total_rows += planned.messages
        self._commit_requested = self._commit_requested or outcome.commit
        self._commit_if_due(watch)
        self._report(planned, outcome, before, latest, watch)
        return outcome.shutdown

    def _run_until_good(self, batch: Batch, planned: BatchRanges) -> Succeeded | None:
        """None if the run was told to stop at once."""
        while True:
            if self._stop.immediate.is_set():
                return None
            batch = batch.next_run()
            self._run = batch.run
            self._run_began = time.monotonic()
            self._directory.start_run(self._claim.epoch, batch)
            lanes = self._directory.lanes()
            try:
                self._in_spark = True
                reports = run_batch(self._context, self._job.topology, lanes, self._plan(lanes, batch, planned))
            except (Py4JJavaError, CapturedException) as error:
                self._in_spark = False
                self._job_failed(error)
                continue
            except Exception:
                self._cancel_group()
                raise
            finally:
                self._in_spark = False
            outcome = self._decide(reports)
            if outcome is not None:
                return outcome

    def _decide(self, reports: list[Report]) -> Succeeded | None:
        """None if the batch has to be run again."""
        match decide_outcome(reports, self._job.topology, self._job.settings.tasks):
            case Succeeded() as outcome:
                return outcome
            case Inconsistent(reason):
                self._count_failure(RetryableError(reason))
                return None
            case UserCodeFailed(failed):
                raise UserCodeError(failed)
            case JobFailed(kind, text):
                raise KINDS.get(kind, PenstockError)(text)

    def _job_failed(self, error: Exception) -> None:
        """The Spark job failed: a lost container means a new epoch, anything else another run of the batch."""
        if self._stop.immediate.is_set():
            return
        # A container that was killed and the job that broke on it fail at about the same time.
        self._stop.immediate.wait(0.2)
        self._look_at_commit()  # one that failed has cancelled the job
        if self._directory.any_lost:
            raise ContainerLostError(self._directory.loss()) from error
        self._count_failure(error)
        self._cancel_rest()
        self._await_quiet_spark()

    def _plan(self, lanes: tuple[Lane, ...], batch: Batch, planned: BatchRanges) -> BatchPlan:
        job = self._job
        return BatchPlan(
            SourceStage(job.worker_package, lanes, batch, planned.by_task, self._claim.epoch),
            tuple(
                ContainerStage(stage.number, lanes, job.secret, self._claim.epoch, batch, job.tls)
                for stage in job.topology.container_stages
            ),
            None
            if job.topology.sink is None
            else SinkStage(job.worker_package, lanes, batch, job.writer(self._claim.epoch)),
        )

    # Commits.

    def _commit_if_due(self, watch: Stopwatch) -> None:
        """Begin a commit if one is due; one in flight makes it wait for its turn, and at last processing for it."""
        self._look_at_commit()
        every_ms = self._job.config.task.commit_ms
        elapsed_ms = (time.monotonic() - self._committed_at) * 1000
        due = self._commit_requested or (0 < every_ms <= elapsed_ms and self._committed_batch != self._batch)
        if due and not self._skips_commit():
            watch.lap("other")
            self._await_commit()
            watch.lap("commitWait")
            self._begin_commit(Boundary(self._positions, self._batch, self._batch_time_ms))
            watch.lap("walCommit")

    def _skips_commit(self) -> bool:
        """Whether a commit that is due is left to a later batch: its changes stay where they are."""
        task, flight = self._job.config.task, self._commits.in_flight
        if flight is None or flight.age_ms >= task.commit_max_delay_ms:
            return False
        return self._directory.pending_bytes() < task.commit_max_pending_bytes

    def _commit(
        self, *, detail: Detail = "commit", ended: Ended | None = None, consumed_startpoints: tuple[str, ...] = ()
    ) -> None:
        """A commit, awaited."""
        boundary = Boundary(
            self._positions, self._batch, self._batch_time_ms, detail, ended, consumed_startpoints=consumed_startpoints
        )
        self._begin_commit(boundary)
        self._await_commit()

    def _begin_commit(self, boundary: Boundary) -> None:
        if self._keeper.lease.lost is not None:
            raise FencedError(f"{self._keeper.lease.lost}. This run stops")
        self._commit_requested = False
        self._committed_at, self._committed_batch = time.monotonic(), boundary.batch
        self._commits.begin(self._claim, boundary)

    def _await_commit(self) -> None:
        """Until the commit in flight is complete; at most `task.commit.timeout.ms`."""
        timeout_s = self._job.config.task.commit_timeout_ms / 1000
        self._committed(self._commits.wait(timeout_s, self._stop.immediate))

    def _look_at_commit(self) -> None:
        """Take note of a commit that has completed meanwhile. Raises what one that failed raised."""
        self._committed(self._commits.poll())

    def _committed(self, done: Completed | None) -> None:
        if done is not None:
            self._failures = 0
            self._last_commit = done
            self._board.update(last_checkpoint=str(done.record.id))

    # Small things.

    def _await_lease(self) -> bool:
        """A holder whose last renewal is too long ago starts no batch: it waits until it is renewed. False if the run
        is told to stop meanwhile."""
        lease = self._keeper.lease
        lease_s = self._job.config.job.lease_ms / 1000
        deadline = time.monotonic() + 3 * lease_s + 10
        while not lease.may_start_batch():
            if lease.lost is not None:
                raise FencedError(f"{lease.lost}. This run stops; what it did since its last checkpoint does not count")
            if time.monotonic() > deadline:
                raise PenstockTimeoutError(
                    f"the lease of the job could not be renewed for {3 * lease_s + 10:.0f} s (job.lease.ms is "
                    f"{self._job.config.job.lease_ms}), so no batch may start. The last failure: "
                    f"{self._keeper.failure or 'none, the store has not answered yet'}"
                )
            self._look_at_commit()  # one that failed ends the run now, not when the lease is given up
            if self._stop.graceful.wait(0.05):
                return False
        return True

    def _check_spark(self, error: Exception) -> None:
        """Without Spark there is nothing to try again."""
        if (died := spark_died(error, self._board.last_checkpoint)) is not None:
            raise died from error

    def _count_failure(self, error: Exception, *, then: str = "") -> None:
        self._check_spark(error)
        error = self._explained(error)
        self._failures += 1
        limit = self._job.config.job.retry_max
        if self._failures <= limit:
            text = "failure %d since the last checkpoint, at most %d are retried%s: %s"
            logger.warning(text, self._failures, limit, then, cause_of(error))
            return
        times = "A failure" if limit == 0 else f"{self._failures} failures"
        raise PenstockError(
            f"{times} since the last checkpoint, job.retry.max is {limit}. The last one: {cause_of(error)}. The state "
            f"is as of checkpoint {self._board.last_checkpoint}; start the job again once the cause is gone"
        ) from error

    def _explained(self, error: E) -> E | ContainerLostError:
        """For a container that died, how it did, in place of what a call to it met."""
        if not isinstance(error, ContainerLostError):
            return error
        explained = ContainerLostError(self._directory.loss(otherwise=str(error)))
        explained.__cause__ = error
        return explained

    def _report(
        self,
        planned: BatchRanges,
        outcome: Succeeded,
        before: Positions,
        latest: Mapping[SystemStreamPartition, int],
        watch: Stopwatch,
    ) -> None:
        total_ms = watch.total_ms()
        progress = JobProgress(
            id=self._job.uid,
            run_id=self._claim.run_id,
            name=self._job.paths.root,
            timestamp=now_text(),
            batch_id=self._batch,
            num_input_rows=planned.messages,
            num_output_rows=outcome.messages_out,
            dead_letters=outcome.dead_letters,
            processed_rows_per_second=planned.messages / max(total_ms, 1) * 1000,
            duration_ms={"triggerExecution": total_ms, **watch.parts},
            sources=source_progress(before, self._positions, latest),
            total_input_rows=self._total_rows,
            last_checkpoint=self._board.last_checkpoint,
            container_bytes=self._directory.resident_bytes(),
            commit_ms={}
            if self._last_commit is None
            else {"snapshot": self._last_commit.snapshot_ms, "total": self._last_commit.total_ms},
        )
        remaining = None
        if self._until is not None:
            remaining = sum(max(0, self._until[at.ssp] - offset) for at, offset in self._positions.items())
        self._board.update(last=progress, remaining=remaining)
