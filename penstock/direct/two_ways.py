"""Runs small batches through the direct worker, and all others as Spark jobs.

The choice of a batch's way is pure: it knows the size of the batch, and how the runs before went. The runner knows
neither Spark nor a process: both are given to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.batch.batch import Batch
from penstock.batch.portions import BatchRanges
from penstock.direct.worker import RunOrder
from penstock.errors import PenstockError
from penstock.runtime.reports import Report
from penstock.runtime.stage.sink import writing_text
from penstock.start.job import JobPlan
from penstock.wire.containers import Lane, ProcessDeath
from penstock.wire.ports import BatchRunner, Fleet, OtherWayError
from penstock.wire.protocol import START_RUN, StartRun
from penstock.wire.security import TlsIdentity

MOST_MESSAGES = 20_000
MOST_BYTES = 16 << 20
"""A larger batch gains nothing: the work takes longer than Spark's part, and Spark works in parallel."""
LIMIT_BYTES = 4 * MOST_BYTES
"""A direct run breaks off once its messages take more memory: sizes are estimates, and operators may make many of
one."""
_MOST_LEFT_OUT = 1024


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts that decide it."""

    run: int
    is_control: bool
    messages: int
    message_bytes: float
    """The size of a message in the batches before; 0 if it is not known."""
    worker_is_ready: bool
    """False while the direct worker starts."""
    left_out: int
    """So many batches go to Spark because a direct run broke off, or the worker ended."""


def reason_for_spark(facts: BatchFacts) -> str:
    """Why Spark should run the batch, in a word; empty if it should go the direct way."""
    if facts.run > 1:
        return "repeat"
    if facts.is_control:
        return "control"
    if facts.messages > MOST_MESSAGES or facts.messages * facts.message_bytes > MOST_BYTES:
        return "large"
    if facts.left_out:
        return "failure"
    return "" if facts.worker_is_ready else "start"


@dataclass(frozen=True, slots=True)
class Backoff:
    """The batches that go to Spark after a direct run that broke off: twice as many each time, until one succeeds."""

    left_out: int = 0
    next: int = 8

    def failed(self) -> Backoff:
        return Backoff(self.next, min(2 * self.next, _MOST_LEFT_OUT))

    def skipped(self) -> Backoff:
        return Backoff(max(0, self.left_out - 1), self.next)

    def succeeded(self) -> Backoff:
        return Backoff()


logger = logging.getLogger(__name__)


class Worker(Protocol):
    """The direct worker, as `DirectWorker` is one."""

    @property
    def failure(self) -> str: ...

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def writes(self) -> bool: ...

    @property
    def death(self) -> ProcessDeath | None: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def is_ready(self) -> bool: ...

    def run(self, order: RunOrder) -> tuple[bytes, ...]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class Lanes(Fleet, Protocol):
    """A fleet whose containers have addresses."""

    @property
    def tls(self) -> TlsIdentity | None: ...

    def lanes(self) -> tuple[Lane, ...]:
        """Every container with its tasks."""
        ...


class TwoWays(BatchRunner):
    """The `BatchRunner` of a job with a latency target.

    If a run breaks off in the direct worker, that process ends first, unless the batch was declined before anything was
    touched. The batch then runs as a Spark job: a repeat never goes the direct way.
    """

    def __init__(
        self, spark: BatchRunner, job: JobPlan, fleet: Lanes, secret: str, start_worker: Callable[[], Worker]
    ) -> None:
        """
        Args:
            spark: runs all other batches.
            job: the job.
            fleet: its containers.
            secret: proves to them who the worker is.
            start_worker: starts a direct worker, without waiting for it. Raises OSError if there can be none.
        """
        self._spark = spark
        self._job = job
        self._fleet = fleet
        self._secret = secret
        self._start = start_worker
        self._worker: Worker | None = None
        self._death: ProcessDeath | None = None
        """The end of the last worker."""
        self._running = False
        """True while the worker runs a batch."""
        self._backoff = Backoff()
        self._message_bytes = 0.0
        self._started: tuple[int, Mapping[str, int]] | None = None
        """The epoch and the tables of the last run that was named to every container."""

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        worker = self._present_worker()
        facts = BatchFacts(
            batch.run,
            batch.control != "none",
            ranges.messages,
            self._message_bytes,
            worker is not None and worker.is_ready,
            self._backoff.left_out,
        )
        reason = reason_for_spark(facts)
        self.way = f"spark-{reason}" if reason else "direct"
        needed = epoch, batch.tables
        if worker is not None and not reason:
            if needed != self._started:  # containers without tasks, such as those of standbys, get no attempts
                self._fleet.ask(START_RUN, epoch, StartRun(batch))
                self._started = needed
            reports = self._run_directly(worker, epoch, batch, ranges)
            self._backoff = self._backoff.succeeded()
        else:
            self._started = needed
            reports = self._spark.run(epoch, batch, ranges)
            if batch.run == 1:  # the repeat of a run that broke off is none of those that follow it
                self._backoff = self._backoff.skipped()
        self._note_sizes(reports)
        return reports

    def _present_worker(self) -> Worker | None:
        """The worker; another one, which starts, in place of one that has ended."""
        worker = self._worker
        if worker is not None and worker.has_ended:
            if not worker.is_cancelled:
                why = worker.failure or "it ended between two batches"
                logger.warning("Spark runs small batches as well for a while, because of the direct worker: %s", why)
                self._backoff = self._backoff.failed()
            worker.close()
            self._worker = None
        if self._worker is None and not self._backoff.left_out:
            self._worker = self._start_worker()
        return self._worker

    def _start_worker(self) -> Worker | None:
        try:
            return self._start()
        except OSError as error:
            logger.warning("the direct worker cannot be started; Spark runs small batches as well: %s", error)
            self._backoff = self._backoff.failed()
            return None

    def _run_directly(self, worker: Worker, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        fleet, writer = self._fleet, self._job.writer(epoch)
        order = RunOrder(
            epoch, batch, ranges.by_task, fleet.lanes(), writer, self._secret, fleet.tls, LIMIT_BYTES
        )  # fmt: skip
        try:
            self._running = True
            payloads = worker.run(order)
        except OtherWayError as error:
            self._running = False
            if error.declined:
                logger.info("%s runs as a Spark job: %s", batch, error)
            if not worker.is_cancelled:
                self._backoff = self._backoff.failed()
            if worker.has_ended:
                self._death = worker.death
                worker.close()
                self._worker = None
            raise
        finally:
            self._running = False
        return [Report.decode(payload) for payload in payloads]

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

    def deaths(self) -> Sequence[ProcessDeath]:
        own = () if self._death is None else (self._death,)
        return (*own, *self._spark.deaths())

    def cancel_rest(self) -> None:
        self._spark.cancel_rest()

    def await_quiet(self) -> None:
        """Wait for Spark's tasks only: a direct run that broke off has ended with its process."""
        self._spark.await_quiet()

    def death(self, error: BaseException, last_checkpoint: str | None) -> PenstockError | None:
        return self._spark.death(error, last_checkpoint)

    def close(self) -> None:
        """Cancel the current run, and end the direct worker. No call follows."""
        self._spark.close()
        if self._worker is not None:
            self._worker.close()
