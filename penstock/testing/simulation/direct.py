"""The direct way of small batches in the simulation: a process that dies, stops and is cut off, and its exchanges with
containers.

The choice of a way, the stages of a batch and the attempts in containers are the real ones.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.flight as flight

from penstock.container.container import Container
from penstock.container.server import run_attempts
from penstock.direct.stages import DeclinedError, DirectStages
from penstock.direct.two_ways import TwoWays
from penstock.direct.worker import RunOrder
from penstock.start.job import ClaimedJob
from penstock.testing.simulation.faults import Trouble
from penstock.testing.simulation.hosts import SimulatedFleet, SimulatedRunner
from penstock.testing.simulation.scheduler import KilledError, Process
from penstock.wire.client import AttemptStream
from penstock.wire.containers import ContainerAddress, ProcessDeath
from penstock.wire.ports import BatchRunner, OtherWayError, WorkerPackage
from penstock.wire.protocol import AttemptCall, dump
from penstock.wire.security import TlsIdentity

_LOOK_S = 0.5
_END_S = 0.2
"""The direct worker sees the end of its driver so much later."""


def runner_for(job: ClaimedJob, fleet: SimulatedFleet, trouble: Trouble, driver: Process) -> BatchRunner:
    """The runner of a job, by its configuration."""
    spark = SimulatedRunner(job, fleet, trouble)
    if job.config.job.latency_target_ms is None:
        return spark
    return TwoWays(spark, job.plan, fleet, "", lambda: SimulatedWorker(trouble, driver, fleet, job))


class SimulatedWorker:
    """A direct worker, as a simulated process."""

    failure = ""
    writes = False
    death: ProcessDeath | None = None

    def __init__(self, trouble: Trouble, driver: Process, fleet: SimulatedFleet, job: ClaimedJob) -> None:
        """Start the process, without waiting for it."""
        self._trouble = trouble
        self._scheduler = trouble.scheduler
        self._limits = job.config.container
        self.is_cancelled = False
        self._starts_s = (0.0, 0.02, 1.0, 20.0)[self._scheduler.choices.draw(4)]
        self._ready = not self._starts_s
        self.process = Process(f"direct-of-{driver.name}", host=driver.host)
        fleet.workers.append(self.process)
        driver.on_death.append(self._follow_driver)
        package = WorkerPackage(fleet.unpacked(job.topology), job.settings, job.streams.systems)
        self._stages = DirectStages(package, partial(SimulatedStream, trouble, fleet, self.process))
        self._scheduler.spawn(self.process, "start", self._start)

    def _start(self) -> None:
        self._scheduler.sleep(self._starts_s)
        self._ready = True

    def _follow_driver(self) -> None:
        if not self.process.dead:
            self._scheduler.spawn(self._trouble.network, "end", self._end_soon)

    def _end_soon(self) -> None:
        self._scheduler.sleep(_END_S)
        self._end("its driver has ended")

    def _end(self, why: str) -> None:
        if not self.process.dead:
            self._scheduler.kill(self.process, why)

    @property
    def has_ended(self) -> bool:
        return self.is_cancelled or bool(self.process.dead)

    @property
    def is_ready(self) -> bool:
        return self._ready and not self.has_ended

    def run(self, order: RunOrder) -> tuple[bytes, ...]:
        """Run a batch. Raises OtherWayError, as `DirectWorker.run`."""
        trouble, scheduler = self._trouble, self._scheduler
        order = pickle.loads(pickle.dumps(order))  # noqa: S301
        trouble.pass_time()
        found: list[tuple[bytes, ...]] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                found.append(self._stages.run(order))
            except KilledError:
                raise
            except BaseException as error:
                errors.append(error)

        lost = trouble.happens(trouble.rates.call)
        actor = scheduler.spawn(self.process, "run", work)
        seen: object = None
        heard = moved = scheduler.now_ns
        try:
            while not scheduler.join(scheduler.me(), actor, _LOOK_S):
                now, progress = scheduler.now_ns, self._stages.progress()
                self.writes = self._stages.writes
                heard = now if self.process.stopped_until <= now else heard
                if progress is None or progress != seen:
                    seen, moved = progress, now
                if (now - heard) / 1e6 > self._limits.lost_ms or (now - moved) / 1e6 > self._limits.attempt_timeout_ms:
                    self._end("it gives no sign")
        finally:
            self.writes = False
        if lost:
            trouble.counts["lost direct reply"] += 1
            self._end("kill -9")
        trouble.pass_time()
        if errors and isinstance(errors[0], DeclinedError):
            trouble.counts["declined direct run"] += 1
            raise OtherWayError(str(errors[0]), declined=True)
        if lost or not found:
            trouble.counts["broken direct run"] += 1
            why = str(errors[0]) if errors else "it has ended"
            scheduler.note(f"the direct worker: {why}")
            self._end("its run broke off")
            raise OtherWayError(f"the direct worker: {why}")
        trouble.counts["direct run"] += 1
        return found[0]

    def kill(self) -> None:
        """End the process at once, from any thread."""
        self.is_cancelled = True
        self._end("it is cancelled")

    def close(self) -> None:
        """End the process."""
        self._end("it is closed")


class _Chunk:
    """A message, as a reader of Flight gets it."""

    def __init__(self, data: pa.RecordBatch, metadata: bytes | None) -> None:
        self.data = data
        self.app_metadata = None if metadata is None else pa.py_buffer(metadata)


class _Pipe:
    """One direction of an exchange: reader and writer as those of Flight, in two processes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[_Chunk] = deque()
        self._ended = False
        self._broken = ""

    def begin(self, _schema: pa.Schema) -> None:
        """Nothing: both sides know the schema."""

    def write_batch(self, data: pa.RecordBatch) -> None:
        self.write_with_metadata(data, None)

    def write_with_metadata(self, data: pa.RecordBatch, metadata: bytes | None) -> None:
        with self._changed:
            if self._broken:
                raise flight.FlightUnavailableError(self._broken)
            self._chunks.append(_Chunk(data, metadata))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def break_off(self, why: str) -> None:
        """From now on, reads and writes raise an error."""
        with self._changed:
            self._broken = self._broken or why
            self._changed.notify_all()

    def __iter__(self) -> Iterator[_Chunk]:
        while True:
            with self._changed:
                while not (self._chunks or self._ended or self._broken):
                    self._changed.wait()
                if self._broken:
                    raise flight.FlightUnavailableError(self._broken)
                if not self._chunks:
                    return
                chunk = self._chunks.popleft()
            yield chunk


class _Reader:
    """The reader of an exchange, as its caller has it."""

    def __init__(self, pipe: _Pipe, cancel: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._cancel = cancel

    def __iter__(self) -> Iterator[_Chunk]:
        return iter(self._pipe)

    def cancel(self) -> None:
        self._cancel("the caller has cancelled it")


class SimulatedStream(AttemptStream):
    """An exchange of the direct worker with a container. Its connection may break, and its request may come late."""

    def __init__(
        self,
        trouble: Trouble,
        fleet: SimulatedFleet,
        worker: Process,
        address: ContainerAddress,
        secret: str,
        call: AttemptCall,
        tls: TlsIdentity | None,
    ) -> None:
        self._address, self._call = address, call
        self._trouble = trouble
        self._there, self._back = _Pipe(), _Pipe()
        self._writer, self._reader = self._there, _Reader(self._back, self._break_soon)
        process, container = fleet.found(address)
        trouble.pass_time()
        if process is None or container is None or process.dead:
            raise self._lost("nothing listens there")
        self._ends = process, worker
        for each in self._ends:
            each.on_death.append(self._notice_end)
        late_s = 0.0
        if trouble.happens(trouble.rates.call):
            trouble.counts["broken exchange"] += 1
            late_s = (0.0, 0.5, 20.0)[trouble.scheduler.choices.draw(3)]
            self._break_soon("the connection broke")
        trouble.scheduler.spawn(process, "exchange", partial(self._serve, container, late_s))

    def _serve(self, container: Container, late_s: float) -> None:
        """The container's side."""
        if late_s:
            self._trouble.scheduler.sleep(late_s)
        try:
            run_attempts(container, dump(self._call), self._there, self._back)
        except Exception as error:
            self._back.break_off(str(error))
        self._back.close()

    def close(self) -> None:
        super().close()
        for each in self._ends:
            each.on_death.remove(self._notice_end)

    def _notice_end(self) -> None:
        self._break_soon("the other side has ended")

    def _break_soon(self, why: str) -> None:
        """Both sides notice it, in any order and at any step of theirs."""
        for pipe in (self._there, self._back):
            self._trouble.scheduler.spawn(self._trouble.network, "break", partial(self._break, pipe, why))

    def _break(self, pipe: _Pipe, why: str) -> None:
        self._trouble.scheduler.sleep((0.0001, 0.003, 0.1)[self._trouble.scheduler.choices.draw(3)])
        pipe.break_off(why)
