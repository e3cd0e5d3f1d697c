"""Runs batches as Spark jobs: one job a run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from penstock.batch.batch import Batch
from penstock.batch.ranges import BatchRanges
from penstock.errors import ContainerLostError, PenstockError, PenstockTimeoutError
from penstock.host.logs import log_directory
from penstock.runtime.reports import Report
from penstock.runtime.stage.sink import writing_text
from penstock.spark.batches.lineage import BatchPlan, run_batch
from penstock.spark.batches.packet_rdd import PacketRdd, Step
from penstock.spark.batches.worker_deaths import worker_deaths
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.session.gateway import spark_died
from penstock.spark.session.spark_errors import cause_of
from penstock.spark.workers.packages import Shipment
from penstock.spark.workers.worker import ContainerStage, SinkStage, SourceStage
from penstock.start.job_plan import JobPlan
from penstock.wire.address import Lane
from penstock.wire.calls import START_RUN
from penstock.wire.endings import ProcessDeath
from penstock.wire.ports import BatchRunner, RunBrokenError
from penstock.wire.protocol import StartRun

logger = logging.getLogger(__name__)
_QUIET_SECONDS = 60
_REPORT_SECONDS = 10.0
_LOOK_SECONDS = 0.02


class SparkJobs(Protocol):
    """Finds and cancels the Spark jobs of a run."""

    def enter(self) -> None:
        """Register this thread as the submitter of the run's next Spark job. Raises RunBrokenError if no more may be
        submitted."""
        ...

    def cancel(self) -> None:
        """Cancel the running ones, from any thread."""
        ...

    def ids(self) -> Sequence[int]: ...


class JobGroup:
    """The jobs of a run that has Spark for itself: one job group."""

    def __init__(self, context: SparkContext, group: str, description: str) -> None:
        self._context = context
        self._group, self._description = group, description
        self._entered = False

    def enter(self) -> None:
        if not self._entered:  # a property of this thread
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            self._entered = True

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)

    def ids(self) -> Sequence[int]:
        return self._context.statusTracker().getJobIdsForGroup(self._group)


class SparkRunner(BatchRunner):
    """The `BatchRunner` of a Spark context."""

    def __init__(
        self,
        context: SparkContext,
        job: JobPlan,
        shipment: Shipment,
        directory: ContainerDirectory,
        stop: threading.Event,
        jobs: SparkJobs | None = None,
    ) -> None:
        """Once `stop` is set, nothing is waited for. `jobs`: by default a job group of the run."""
        self._context = context
        self._job = job
        self._shipment = shipment
        self._directory = directory
        self._stop = stop
        name = job.paths.root
        self._jobs = jobs or JobGroup(context, f"penstock-{name}-{job.claim.run_id}", f"Penstock {name}")
        self._deaths: Sequence[ProcessDeath] = ()
        self._running = False
        """True while a Spark job runs, or is about to."""

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        self._directory.ask(START_RUN, epoch, StartRun(batch))
        self._jobs.enter()
        lanes = self._directory.lanes()
        try:
            self._running = True
            return run_batch(self._context, self._job.topology, lanes, self._plan(epoch, lanes, batch, ranges))
        except (Py4JJavaError, CapturedException) as error:
            self._note_deaths(str(error), epoch, batch, lanes)
            raise RunBrokenError(cause_of(error)) from error
        except Exception:
            self._cancel_group()
            raise
        finally:
            self._running = False

    def _note_deaths(self, error: str, epoch: int, batch: Batch, lanes: tuple[Lane, ...]) -> None:
        """Note whose end broke the run off. After that of a container, Spark's workers are killed."""
        self._deaths = []
        if not self._directory.any_lost:
            job, partitions = self._job, self._partitions(lanes)
            folder = str(log_directory(job.config, job.paths, job.uid))
            limit_s = 2 * job.config.container.attempt_timeout_ms / 1000
            self._deaths = worker_deaths(self._context, error, folder, epoch, batch, partitions, limit_s)

    def _partitions(self, lanes: tuple[Lane, ...]) -> tuple[Lane, ...]:
        """The lanes of the partitions of stage 0; empty if these are others."""
        return lanes

    def deaths(self) -> Sequence[ProcessDeath]:
        return self._deaths

    def _plan(self, epoch: int, lanes: tuple[Lane, ...], batch: Batch, ranges: BatchRanges) -> BatchPlan:
        job, shipment = self._job, self._shipment
        return BatchPlan(
            self._source(epoch, lanes, batch, ranges),
            tuple(
                ContainerStage(stage.number, lanes, shipment.secret, epoch, batch, self._directory.tls)
                for stage in job.topology.container_stages
            ),
            None if job.topology.sink is None else SinkStage(shipment.worker_package, lanes, batch, job.writer(epoch)),
            self._rows(),
        )

    def _source(self, epoch: int, lanes: tuple[Lane, ...], batch: Batch, ranges: BatchRanges) -> Step:
        return SourceStage(self._shipment.worker_package, lanes, batch, ranges.by_task, epoch)

    def _rows(self) -> PacketRdd | None:
        """The input of stage 0; None: there is none."""
        return None

    def cancel(self) -> None:
        """Cancel the running Spark job, from any thread; there may be none."""
        if self._running:
            self._cancel_group()

    def _cancel_group(self) -> None:
        try:
            self._jobs.cancel()
        except Exception as error:  # Spark is ending or dead, and its jobs with it: the loop notices that itself
            logger.debug("the Spark job was not cancelled: %s", error)

    def await_quiet(self) -> None:
        """Wait until no task of an old job of this run is running beside later work.

        Spark may need `spark.network.timeout` to notice that an executor has ended.
        """
        self.cancel_rest()
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
            if self._stop.wait(_LOOK_SECONDS):
                return

    def cancel_rest(self) -> None:
        """Cancel the remaining tasks of the last Spark job, if there are any: Spark logs a warning when there is
        nothing to cancel."""
        status = self._context.statusTracker()
        if set(self._jobs.ids()) & set(status.getActiveJobsIds()):
            self._cancel_group()

    def _quiet_timeout_s(self) -> float:
        """A little longer than Spark takes to notice a lost executor."""
        jvm: Any = self._context._jvm  # noqa: SLF001
        text = self._context.getConf().get("spark.network.timeout", "120s")
        return float(jvm.org.apache.spark.network.util.JavaUtils.timeStringAsSec(text)) + _QUIET_SECONDS

    def waits_for(self) -> str:
        """The outputs being written, in words, once the last of the running job's Spark stages has begun."""
        if not self._running or self._job.topology.sink is None:
            return ""
        try:
            status = self._context.statusTracker()
            jobs = sorted(set(status.getActiveJobsIds()) & set(self._jobs.ids()))
            infos = [status.getJobInfo(job) for job in jobs]
            last = status.getStageInfo(max(infos[-1].stageIds)) if infos and infos[-1] else None
        except Exception as error:  # Spark is ending or dead: the run loop notices that itself
            logger.debug("Spark did not say what runs: %s", error)
            return ""
        return writing_text(self._job.topology) if last and last.numActiveTasks else ""

    def _active_tasks(self) -> int:
        """Running tasks of the job's last Spark job; earlier jobs had ended when it began."""
        status = self._context.statusTracker()
        jobs = sorted(self._jobs.ids())[-1:]
        infos = [status.getJobInfo(job) for job in jobs]
        stages = [status.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage)

    def death(self, error: BaseException, last_checkpoint: str | None) -> PenstockError | None:
        return spark_died(error, last_checkpoint)
