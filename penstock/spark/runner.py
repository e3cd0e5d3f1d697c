"""Runs batches as Spark jobs, one job a run; and the choice between that and the direct way, by a job's configuration.

A run that fails because Python workers have ended says what these were doing: their hosts know it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from penstock.batch.batch import Batch
from penstock.batch.portions import BatchRanges
from penstock.direct.two_ways import TwoWays
from penstock.direct.worker import DirectWorker
from penstock.errors import ContainerLostError, PenstockError, PenstockTimeoutError
from penstock.host.logs import log_directory
from penstock.host.position_page import Spot, pages_of_ended
from penstock.runtime.reports import Report
from penstock.runtime.stage.sink import writing_text
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.lineage import BatchPlan, PacketRdd, Step, run_batch
from penstock.spark.session.executors import Executor, job_group, live_executors, rdd_on
from penstock.spark.session.gateway import cause_of, spark_died
from penstock.spark.workers.packages import Shipment
from penstock.spark.workers.worker import ContainerStage, SinkStage, SourceStage
from penstock.start.job import JobPlan
from penstock.wire.containers import Lane, ProcessDeath
from penstock.wire.ports import BatchRunner, RunBrokenError
from penstock.wire.protocol import START_RUN, StartRun

logger = logging.getLogger(__name__)
_CRASHED = "Python worker exited unexpectedly"
_FAILED_TASK = re.compile(r"Task (\d+) in stage [\d.]+ failed \d+ times?")
_ANSWER_SECONDS = 5.0


def worker_deaths(
    context: SparkContext,
    error: str,
    folder: str,
    epoch: int,
    batch: Batch,
    lanes: Sequence[Lane],
    idle_limit_s: float,
) -> list[ProcessDeath]:
    """The worker whose end has ended a run of a batch, if that was it, and what it was doing.

    Args:
        error: what Spark says about the run.
        folder: the pages of the workers on each host.
        epoch, batch: of the run.
        lanes: the tasks by partition of Spark; empty if its partitions are not known.
        idle_limit_s: Spark kills a worker that has sent nothing for this long. That is no doing of a message: what it
            waited for may come.
    """
    if _CRASHED not in error:
        return []
    own_run = (epoch, batch.number, batch.run)
    spots = [each for each in _all_spots(context, folder) if (each.epoch, each.batch, each.run) == own_run]
    failed = _FAILED_TASK.search(error)
    if failed is not None and int(failed[1]) < len(lanes):  # Spark has killed the workers of the others then
        own = set(lanes[int(failed[1])].tasks)
        spots = [spot for spot in spots if spot.task in own]
    now = time.time()
    spots = [spot for spot in spots if now - spot.since < idle_limit_s]
    places = {(spot.task, spot.span, spot.message) for spot in spots}
    if not spots:
        return []
    name = f"Spark's worker in {batch}"
    # Spark has tried the task several times: its workers all ended at one place, or nobody knows at which.
    found = [max(spots, key=lambda spot: spot.since)] if len(places) == 1 else spots
    return [ProcessDeath(f"{name}, since {found[0].since:.3f},", _status(error), tuple(found))]


def _status(error: str) -> int | None:
    """Spark does not know exit statuses. Python's faulthandler has told it of a crash, if it was one."""
    return -11 if "Fatal Python error" in error or "Segmentation fault" in error else None


def _all_spots(context: SparkContext, folder: str) -> list[Spot]:
    found: list[Spot] = []
    for executor in live_executors(context):
        found.extend(pages_of_ended(Path(folder)) if executor.is_local else _ask(context, executor, folder))
    return found


def _ask(context: SparkContext, executor: Executor, folder: str) -> list[Spot]:
    group = f"penstock-pages-{executor.id}"
    patience = threading.Timer(_ANSWER_SECONDS, context.cancelJobGroup, [group])
    patience.daemon = True
    patience.start()
    try:
        with job_group(context, group, "Asking what a Python worker did"):
            asked = rdd_on(context, executor).mapPartitions(lambda _: iter([pages_of_ended(Path(folder))]))
            found: list[tuple[Spot, ...]] = asked.collect()
        return [spot for spots in found for spot in spots]
    except Exception as error:  # the batch is run again all the same
        logger.debug("executor %s did not answer: %s", executor, error)
        return []
    finally:
        patience.cancel()


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


def runner_for(
    context: SparkContext,
    job: JobPlan,
    shipment: Shipment,
    directory: ContainerDirectory,
    stop: threading.Event,
) -> SparkRunner | TwoWays:
    """Arguments as of `SparkRunner`. The direct worker has the variables that Spark gives to its Python workers."""
    spark = SparkRunner(context, job, shipment, directory, stop)
    if job.config.job.latency_target_ms is None:
        return spark
    limits = job.config.container
    silence_s, standstill_s = limits.lost_ms / 1000, limits.attempt_timeout_ms / 1000
    start = partial(DirectWorker, shipment.worker_package, silence_s, standstill_s, context.environment)
    return TwoWays(spark, job, directory, shipment.secret, start)
