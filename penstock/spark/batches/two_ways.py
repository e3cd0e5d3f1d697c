"""Runs small batches through the direct worker, and all others as Spark jobs."""

from __future__ import annotations

import logging
import threading

from pyspark import SparkContext

from penstock.batch.batch import Batch
from penstock.batch.ranges import BatchRanges
from penstock.config.model import JobConfig
from penstock.direct.choice import LIMIT_BYTES, Backoff, BatchFacts, reason_for_spark
from penstock.direct.messages import RunOrder
from penstock.direct.worker import DirectWorker
from penstock.errors import PenstockError
from penstock.runtime.reports import Report
from penstock.runtime.stage.sink import writing_text
from penstock.spark.batches.spark_runner import SparkRunner
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.workers.packages import Shipment
from penstock.start.prepare import PreparedJob
from penstock.wire.ports import BatchRunner, OtherWayError

logger = logging.getLogger(__name__)


class TwoWays(BatchRunner):
    """The `BatchRunner` of a job with a latency target.

    A run that breaks off in the direct worker ends that process first. The batch then runs as a Spark job: a repeat
    never goes the direct way.
    """

    def __init__(self, spark: SparkRunner, job: PreparedJob, shipment: Shipment, directory: ContainerDirectory) -> None:
        self._spark = spark
        self._job = job
        self._shipment = shipment
        self._directory = directory
        self._worker: DirectWorker | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._running = False
        """True while the worker runs a batch."""
        self._backoff = Backoff()
        self._message_bytes = 0.0
        self._start_worker()

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        worker = self._worker
        if worker is not None and worker.failure:
            logger.warning("the direct worker did not start; Spark runs small batches as well: %s", worker.failure)
            self._replace_worker()
        ready = worker is not None and worker.is_ready
        facts = BatchFacts(
            batch.run,
            batch.control != "none",
            ranges.messages,
            self._message_bytes,
            ready,
            self._backoff.left_out,
        )
        reason = reason_for_spark(facts)
        self.way = f"spark-{reason}" if reason else "direct"
        if worker is not None and not reason:
            reports = self._run_directly(worker, epoch, batch, ranges)
        else:
            self._backoff = self._backoff.skipped()
            reports = self._spark.run(epoch, batch, ranges)
        self._note_sizes(reports)
        return reports

    def _run_directly(self, worker: DirectWorker, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        job, directory = self._job, self._directory
        order = RunOrder(
            epoch, batch, ranges.by_task, directory.lanes(), job.writer(epoch), self._shipment.secret, directory.tls,
            LIMIT_BYTES,
        )  # fmt: skip
        try:
            self._running = True
            payloads = worker.run(order)
        except OtherWayError as error:
            self._backoff = self._backoff.failed()
            self._replace_worker()
            if error.too_large:
                logger.info("%s is not small, and runs as a Spark job: %s", batch, error)
            raise
        finally:
            self._running = False
        self._backoff = self._backoff.succeeded()
        return [Report.from_payload(payload) for payload in payloads]

    def _note_sizes(self, reports: list[Report]) -> None:
        reads = [read for report in reports if report.stage == 0 for read in report.inputs.values()]
        if messages := sum(read.messages for read in reads):
            self._message_bytes = sum(read.bytes for read in reads) / messages

    def cancel(self) -> None:
        if self._running and (worker := self._worker) is not None:
            worker.kill()
        self._spark.cancel()

    def waits_for(self) -> str:
        worker = self._worker
        if worker is not None and worker.writes:
            return writing_text(self._job.topology)
        return self._spark.waits_for()

    def cancel_rest(self) -> None:
        self._spark.cancel_rest()

    def await_quiet(self) -> None:
        """Wait for Spark's tasks only: a direct run that broke off has ended with its process."""
        self._spark.await_quiet()

    def death(self, error: BaseException, last_checkpoint: str | None) -> PenstockError | None:
        return self._spark.death(error, last_checkpoint)

    def close(self) -> None:
        """End the direct worker. No call follows."""
        with self._lock:
            self._closed = True
        if self._worker is not None:
            self._worker.close()

    def _replace_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._start_worker()

    def _start_worker(self) -> None:
        with self._lock:
            self._worker = None if self._closed else _worker(self._shipment, self._job.config)


def runner_for(
    context: SparkContext,
    job: PreparedJob,
    shipment: Shipment,
    directory: ContainerDirectory,
    stop: threading.Event,
) -> SparkRunner | TwoWays:
    """The runner of a job, by its configuration. Arguments as of `SparkRunner`."""
    spark = SparkRunner(context, job, shipment, directory, stop)
    return spark if job.config.job.latency_target_ms is None else TwoWays(spark, job, shipment, directory)


def _worker(shipment: Shipment, config: JobConfig) -> DirectWorker | None:
    limits = config.container
    try:
        return DirectWorker(shipment.worker_package, limits.lost_ms / 1000, limits.attempt_timeout_ms / 1000)
    except OSError as error:
        logger.warning("the direct worker cannot be started; Spark runs small batches as well: %s", error)
        return None
