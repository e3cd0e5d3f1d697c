"""The ports of a job in one process: containers that are objects, and batches in the caller's thread.

Calls go straight to the `Container` objects. Everything behind them is that of a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TypeVar

from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.batch.batch import Batch, Due
from penstock.batch.portions import BatchRanges
from penstock.container.container import Container
from penstock.container.handlers import answers
from penstock.errors import ContainerLostError, PenstockError, RetryableError
from penstock.metrics.snapshot import Snapshot
from penstock.runtime.context import OperatorFailedError
from penstock.runtime.messages.packet import REPORT_STAGE, Packet
from penstock.runtime.reports import Report
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.failures import failed_attempt
from penstock.runtime.stage.sink import OuterStages, OutputWriters, writing_text
from penstock.runtime.stage.source import ReadProgress
from penstock.runtime.stage.task_instance import TaskAttempt
from penstock.start.job import ClaimedJob
from penstock.state.engines.engine import EngineFailedError
from penstock.wire.containers import Assignment, ContainerPlace, assign, moved_to
from penstock.wire.ports import BatchRunner, EpochOpening, Fleet, JobPackage, RunBrokenError, ignore_answer
from penstock.wire.protocol import START_RUN, AttemptCall, Beat, Call, Identity, OpenEpoch, Request, StartRun

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
Hook = Callable[[str], None]
"""Called before each step of a batch or a commit, with its name. An exception from it is raised there."""


def _nothing(_step: str) -> None: ...


class InProcessFleet(Fleet):
    """The `Fleet` of one driver: containers that are objects of this process.

    The hook `at` is called before the steps `open`, `start-run`, `end`, `snapshot`, `upload`, `clean-up`, `wind-down`.
    """

    def __init__(
        self, tasks: int, containers: int = 2, at: Hook = _nothing, standbys: int = 0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """`standbys`: the number for each task. `clock`: of the containers."""
        self.at = at
        self._clock = clock
        self.host_of: Callable[[str], str] = lambda _: "here"
        self._standbys = standbys
        self._tasks = tasks
        self._size = containers
        self._containers: dict[str, Container] = {}
        self._assignment = Assignment()
        self._lost: dict[str, str] = {}
        self._past_metrics = Snapshot()
        self._made = 0
        self._welcome = False
        """True if new containers come with the next epoch although standbys have taken over."""
        self._name = new_token()

    def lose(self, task: int, why: str = "it was killed") -> None:
        """Lose the container of a task. From now on it answers no call.

        Args:
            task: the number of the task.
            why: the reason in error messages.
        """
        self._lost[self._assignment.homes[task]] = why

    def lose_standby(self, task: int, why: str = "it was killed") -> None:
        """Lose the container that is the first standby of a task.

        Args:
            task: the number of the task.
            why: the reason in error messages.
        """
        self._lost[self._assignment.standbys[task][0]] = why

    @property
    def assignment(self) -> Assignment:
        return self._assignment

    def container_of(self, task: int) -> Container:
        """The container of a task.

        Args:
            task: the number of the task.

        Raises:
            ContainerLostError: the container is lost.
        """
        name = self._assignment.homes[task]
        if name in self._lost:
            raise ContainerLostError(f"container {name}: {self._lost[name]}")
        return self._containers[name]

    @property
    def overdue(self) -> str | None:
        """None: attempts run in the caller's thread, and say themselves that they took too long."""
        return None

    @property
    def any_lost(self) -> bool:
        return bool(self._lost)

    def loss(self, otherwise: str = "a container was lost") -> str:
        return "; ".join(f"container {name}: {why}" for name, why in self._lost.items()) or otherwise

    def drop_lost(self) -> None:
        for name in list(self._lost):
            container = self._containers.pop(name)
            container.close()
            self._past_metrics = self._past_metrics.merged(container.metrics())
            del self._lost[name]

    def ensure(self) -> None:
        self.drop_lost()
        taken_over = self._standbys > 0 and self._assignment.survives_with(self._containers)
        while not (taken_over and not self._welcome) and len(self._containers) < self._size:
            self._made += 1
            name = f"{self._name}-{self._made}"
            self._containers[name] = Container(name, new_token(), self._clock)
        self._welcome = False
        self._assignment = self._next_assignment()

    def newcomers(self) -> list[str]:
        """Return new containers in the place of lost ones, once `replace` was called."""
        if self._welcome:
            return ["a new container"]
        if not self._standbys:
            return []
        after = self._next_assignment()
        return moved_to(self._assignment, after, self._next_assignment(everything_ready=True))

    def replace(self) -> None:
        """From now on, new containers can take the place of those that were lost while standbys took over."""
        self._welcome = len(self._containers) < self._size

    def _next_assignment(self, *, everything_ready: bool = False) -> Assignment:
        places = {name: ContainerPlace(self.host_of(name), name) for name in self._containers}
        ready = self._assignment.standbys if everything_ready else self.ready()
        return assign(self._tasks, self._assignment, places, self._standbys, ready)

    def open(
        self, opening: EpochOpening, package: JobPackage, progress: Callable[[int], None]
    ) -> Mapping[int, Mapping[str, Due]]:
        self.at("open")
        next_due: dict[int, Mapping[str, Due]] = {}
        for container, tasks, standbys in self._busy():
            identity = Identity(container.incarnation, opening.epoch)
            own, own_package = self.given_to(container.container, opening, package)
            request = OpenEpoch(b"", own.last_ended, own.checkpoint_id, own.markers, own.covered)
            epoch = container.open(identity, request.for_container(tasks, standbys), own_package, progress)
            next_due |= epoch.next_due
        return next_due

    def given_to(self, container: str, opening: EpochOpening, package: JobPackage) -> tuple[EpochOpening, JobPackage]:
        """The epoch and the job as a container gets them."""
        return opening, package

    def ask(
        self,
        call: Call[Q, A],
        epoch: int,
        request: Q,
        *,
        abandoned: threading.Event | None = None,
        on_answer: Callable[[str, A], None] = ignore_answer,
    ) -> list[A]:
        """Make a call once. A failure is final: nothing is retried."""
        self.at(call.name)
        last_ones: list[A] = []
        for container, tasks, standbys in self._busy():
            identity = Identity(container.incarnation, epoch)
            for last in answers(call, container, identity, request.for_container(tasks, standbys)):
                on_answer(container.container, last)
            last_ones.append(last)
        return last_ones

    def beats(self) -> list[Beat]:
        return [container.beat(0) for container in list(self._containers.values())]

    def metrics(self) -> Snapshot:
        return self._past_metrics.merged(*(container.metrics() for container in list(self._containers.values())))

    def drop_attempts(self) -> None:
        for container in self._containers.values():
            for task in container.tasks.values():
                task.drop_attempts()

    def close(self) -> None:
        """Close every container. Uncommitted changes are lost."""
        containers, self._containers, self._assignment = self._containers, {}, Assignment()
        for container in containers.values():
            container.close()
            self._past_metrics = self._past_metrics.merged(container.metrics())

    def _busy(self) -> list[tuple[Container, list[int], list[int]]]:
        """The containers that the assignment concerns, with their tasks and standbys. Raises ContainerLostError if one
        is lost."""
        if self._lost:
            raise ContainerLostError(self.loss())
        now = self._assignment
        return [
            (each, now.tasks_in(name), now.standbys_in(name))
            for name, each in self._containers.items()
            if now.concerns(name)
        ]


class InProcessRunner(BatchRunner):
    """The `BatchRunner` of one driver: runs the stages of a batch one after the other, in the caller's thread.

    The hook `at` is called before the steps `source`, `stage N` and `sink`, and before `reports`, after all stages.
    """

    def __init__(self, job: ClaimedJob, fleet: InProcessFleet, at: Hook = _nothing) -> None:
        self.at = at
        self._job = job
        self._fleet = fleet
        self._cancelled = threading.Event()
        self._writes = False

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        self._cancelled.clear()
        self._fleet.ask(START_RUN, epoch, StartRun(batch))
        try:
            packets = self._sources(batch, ranges)
            for stage in self._job.topology.container_stages:
                packets = self._stage(epoch, batch, stage.number, packets)
            packets = self._sinks(epoch, batch, packets)
            self._step("reports")
        except RetryableError as error:  # also a container that is lost: the run loop looks for that
            raise RunBrokenError(str(error)) from error
        return [Report.decode(bytes(p.payload or b"")) for p in packets if p.stage == REPORT_STAGE]

    def cancel(self) -> None:
        """Cancel the run before its next step."""
        self._cancelled.set()

    def waits_for(self) -> str:
        return writing_text(self._job.topology) if self._writes else ""

    def cancel_rest(self) -> None:
        """Do nothing: nothing is left when `run` has returned."""

    def await_quiet(self) -> None:
        """Do nothing: nothing continues when `run` has returned."""

    def death(self, error: BaseException, last_checkpoint: str | None) -> PenstockError | None:
        """None: this process lives."""
        return None

    def processed(self, attempt: TaskAttempt) -> None:
        """An attempt of a task has processed all that came to it. Its writes are not applied yet."""

    def _step(self, name: str) -> None:
        self.at(name)
        if self._cancelled.is_set():
            raise RunBrokenError("the run was cancelled")

    def _sources(self, batch: Batch, ranges: BatchRanges) -> list[Packet]:
        self._step("source")
        portions = {task: ranges.by_task.get(task, ()) for task in range(self._job.settings.tasks)}
        with closing(self._outer()) as stages:
            return list(stages.read("", batch, portions, ReadProgress()))

    def _stage(self, epoch: int, batch: Batch, stage: int, packets: list[Packet]) -> list[Packet]:
        self._step(f"stage {stage}")
        mine, sent = split(packets, stage)
        for task in range(self._job.settings.tasks):
            sent.extend(self._attempt(epoch, batch, stage, task, [p for p in mine if p.dest == task]))
        return sent

    def _attempt(self, epoch: int, batch: Batch, stage: int, task: int, packets: Iterable[Packet]) -> list[Packet]:
        container = self._fleet.container_of(task)
        call = AttemptCall(Identity(container.incarnation, epoch), batch, stage, [task])
        attempts = container.epoch(call.identity).attempts
        try:
            running = attempts.begin(call, task, new_token())
        except (OperatorFailedError, EngineFailedError) as error:
            return list(failed_attempt(self._job.topology, self._job.settings, stage, task, new_token(), error))
        try:
            sent = attempts.process(running, packets)
            sent += attempts.finish(running)
            self.processed(running.attempt)
        except BaseException:
            attempts.abandon(running)
            raise
        return sent

    def _sinks(self, epoch: int, batch: Batch, packets: list[Packet]) -> list[Packet]:
        job = self._job
        if job.topology.sink is None:
            return packets
        self._step("sink")
        mine, sent = split(packets, job.topology.sink)
        with closing(self._outer()) as stages, closing(stages.sinks(batch, range(job.settings.tasks))) as attempts:
            for packet in mine:
                attempts.accept(packet)
            self._writes = True
            try:
                return sent + list(attempts.write(self.writers(stages, epoch)))
            finally:
                self._writes = False

    def writers(self, stages: OuterStages, epoch: int) -> OutputWriters:
        """The writers of the outputs."""
        return stages.writers(self._job.writer(epoch))

    def _outer(self) -> OuterStages:
        """New ones for each batch: readers and writers that are kept are tested elsewhere."""
        return OuterStages(self._job.topology, self._job.settings, self._job.streams.systems)


def split(packets: list[Packet], stage: int) -> tuple[list[Packet], list[Packet]]:
    return [p for p in packets if p.stage == stage], [p for p in packets if p.stage != stage]
