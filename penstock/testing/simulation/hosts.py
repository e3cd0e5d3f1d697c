"""The containers and batches of a simulated driver: processes that die, stop, and are cut off.

A call to a container runs in an actor of its process. What the driver learns of it is the reply, or that none came.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from penstock.base.retry import retry
from penstock.batch.batch import Batch, Due
from penstock.batch.portions import BatchRanges
from penstock.container.container import Container
from penstock.container.handlers import answers
from penstock.errors import ContainerLostError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import REPORT_STAGE, Packet
from penstock.runtime.reports import Report
from penstock.runtime.stage.source import ReadProgress
from penstock.start.job import ClaimedJob
from penstock.testing.in_process_ports import InProcessFleet, InProcessRunner, split
from penstock.testing.simulation.faults import Trouble
from penstock.testing.simulation.scheduler import KilledError, Process
from penstock.wire.containers import ContainerAddress, Lane
from penstock.wire.ports import EpochOpening, JobPackage, RunBrokenError, ignore_answer
from penstock.wire.protocol import END, START_RUN, Beat, Call, Identity, OpenEpoch, Request, StartRun
from penstock.wire.security import TlsIdentity

T = TypeVar("T")
Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
_COME_TWICE = frozenset({START_RUN.name, END.name})
"""The calls that a container takes any number of times, and late ones."""
_DISTURBED = ("the attempt was cancelled", " came during ")
"""Words of the errors of attempts that another one of their task has ended, or whose run another one has replaced."""


class SimulatedFleet(InProcessFleet):
    """Containers in processes of their own, for one driver's process."""

    def __init__(
        self,
        trouble: Trouble,
        driver: Process,
        job: ClaimedJob,
        containers: int,
        ship: Callable[[Topology], bytes] | None = None,
    ) -> None:
        """`ship`: the bytes of the topology that each container loads; without it, all have the driver's."""
        super().__init__(job.settings.tasks, containers, standbys=job.config.job.standbys)
        self._trouble = trouble
        self._scheduler = trouble.scheduler
        self._driver = driver
        self._config = job.config
        self._shipped = None if ship is None else ship(job.topology)
        self._loss = threading.Event()
        self.processes: dict[str, Process] = {}
        self.workers: list[Process] = []
        """The direct workers, with those that have ended."""
        self._last_beats: dict[str, Beat] = {}
        driver.on_death.append(self._follow_driver)

    # Processes.

    def ensure(self) -> None:
        before = set(self._containers)
        super().ensure()
        for name in sorted(self._containers.keys() - before):
            process = Process(f"container-{name[-2:].strip('-')}-of-{self._driver.name}", host=self._driver.host)
            process.on_death.append(partial(self._notice, name))
            self.processes[name] = process

    def drop_lost(self) -> None:
        """Give lost containers up. One that was only cut off lives a while longer, and does what it was doing."""
        for name in list(self._lost):
            self._containers.pop(name, None)
            self._last_beats.pop(name, None)
            self._end_soon(self.processes.pop(name))
            del self._lost[name]
        self._loss.clear()

    def close(self) -> None:
        for process in self.processes.values():
            self._end_soon(process)
        self._containers.clear()
        self.processes.clear()

    def _follow_driver(self) -> None:
        for process in self.processes.values():
            self._end_soon(process)

    def _end_soon(self, process: Process) -> None:
        """A process whose driver is gone notices it a while later."""
        if not process.dead:
            after = 0.1 if not self._trouble.happens(300) else 20.0 * self._scheduler.choices.draw(3)
            self._scheduler.spawn(self._trouble.network, "end", partial(self._end_after, process, after))

    def _end_after(self, process: Process, seconds: float) -> None:
        self._scheduler.sleep(seconds)
        self._scheduler.kill(process, "its driver has left it")

    def _notice(self, name: str) -> None:
        """The container has died: its driver hears of it a moment later."""
        if name in self._containers and not self._driver.dead:
            self._scheduler.spawn(self._trouble.network, "notice", partial(self._notice_after, name))

    def _notice_after(self, name: str) -> None:
        self._scheduler.sleep(0.01 if not self._trouble.happens(300) else 3.0)
        self.mark_lost(name, "its heartbeats broke off")

    def mark_lost(self, name: str, why: str) -> None:
        if name in self._containers and name not in self._lost:
            self._lost[name] = why
            self._loss.set()

    # Calls.

    def call(self, name: str, work: Callable[[Container], T], timeout_s: float | None = None) -> T:
        """Have a container do something in its process, and wait for the reply.

        Raises:
            ContainerLostError: none came.
        """
        trouble, scheduler = self._trouble, self._scheduler
        process, container = self.processes.get(name), self._containers.get(name)
        trouble.pass_time()
        if process is None or container is None or process.dead:
            raise ContainerLostError(f"container {name} does not answer")
        lost = trouble.happens(trouble.rates.call)
        if lost and scheduler.choices.draw(2):
            trouble.counts["lost request"] += 1
            self.mark_lost(name, "the connection broke")
            raise ContainerLostError(f"container {name}: the connection broke before the call")
        replies: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                replies.append(work(container))
            except KilledError:
                raise
            except BaseException as error:
                errors.append(error)

        actor = scheduler.spawn(process, "call", run)
        if not scheduler.join(scheduler.me(), actor, timeout_s):
            self.mark_lost(name, "it did not answer in time")
            raise ContainerLostError(f"container {name} did not answer in time")
        if lost:
            trouble.counts["lost reply"] += 1
            self.mark_lost(name, "the connection broke")
            raise ContainerLostError(f"container {name}: the connection broke before the reply")
        trouble.pass_time()
        if errors:
            raise errors[0]
        if not replies:
            self.mark_lost(name, "its heartbeats broke off")
            raise ContainerLostError(f"container {name} died while it answered")
        return replies[0]

    def _come_again(self, name: str, what: str, work: Callable[[Container], object]) -> None:
        """A call comes once more than it was made, at about the same time or later. Nobody hears its answer."""
        scheduler = self._scheduler
        process, container = self.processes.get(name), self._containers.get(name)
        after = (0.0, 0.002, 0.3, 5.0)[scheduler.choices.draw(4)]
        if process is None or container is None:
            return

        def run() -> None:
            try:
                work(container)
            except PenstockError as error:
                scheduler.note(f"`{what}` came again to {process.name}: {type(error).__name__}: {error}")

        def come() -> None:
            scheduler.sleep(after)
            if not process.dead:
                scheduler.spawn(process, "again", run)

        self._trouble.counts["repeated call"] += 1
        scheduler.spawn(self._trouble.network, "again", come)

    def open(
        self, opening: EpochOpening, package: JobPackage, progress: Callable[[int], None]
    ) -> Mapping[int, Mapping[str, Due]]:
        checkpoint_id, markers = opening.checkpoint_id, opening.markers
        request = OpenEpoch(b"", opening.last_ended, checkpoint_id, markers, opening.covered)

        def enter(name: str, tasks: list[int], standbys: list[int]) -> Mapping[int, Mapping[str, Due]]:
            def work(container: Container) -> Mapping[int, Mapping[str, Due]]:
                own = request.for_container(tasks, standbys)
                identity = Identity(container.incarnation, opening.epoch)
                own_package = replace(package, topology=self.unpacked(package.topology))
                return container.open(identity, own, own_package, progress).next_due

            return self.call(name, work, self._config.container.restore_timeout_ms / 1000)

        next_due: dict[int, Mapping[str, Due]] = {}
        for found in self._all(enter):
            next_due |= found
        return next_due

    def unpacked(self, topology: Topology) -> Topology:
        """The topology with the application's code for one process alone."""
        if self._shipped is None:
            return topology
        found: Topology = pickle.loads(self._shipped)  # noqa: S301
        return found

    def ask(
        self,
        call: Call[Q, A],
        epoch: int,
        request: Q,
        *,
        abandoned: threading.Event | None = None,
        on_answer: Callable[[str, A], None] = ignore_answer,
    ) -> list[A]:
        """As on a cluster: all containers at once, and what may pass is tried again."""
        stop = abandoned or self._loss

        def one(name: str, tasks: list[int], standbys: list[int]) -> A:
            began = self._scheduler.now_ns

            def work(container: Container) -> A:
                own = request.for_container(tasks, standbys)
                for last in answers(call, container, Identity(container.incarnation, epoch), own):
                    on_answer(name, last)
                return last

            def once() -> A:
                if call.name in _COME_TWICE and self._trouble.happens(self._trouble.rates.again):
                    self._come_again(name, call.name, work)
                spent_s = (self._scheduler.now_ns - began) / 1e9
                return self.call(name, work, call.answer_s(self._config, spent_s))

            if call.again is None:
                return once()
            limit_s = self._config.task.commit_timeout_ms / 1000
            try:
                return retry(once, replace(call.again, within_s=limit_s), interrupt=stop)
            except ContainerLostError:
                raise
            except RetryableError as error:
                if stop.is_set():
                    raise ContainerLostError(self.loss(f"{request.too_late}: it was abandoned")) from error
                raise PenstockTimeoutError(f"{request.too_late} within {limit_s:g} s: {error}") from error

        return self._all(one)

    def _all(self, one: Callable[[str, list[int], list[int]], T]) -> list[T]:
        """Call every container that the assignment concerns, at once. A loss is raised before any other error."""
        if self._lost:
            raise ContainerLostError(self.loss())
        now = self._assignment
        names = [name for name in self._containers if now.concerns(name)]
        found = together([partial(one, name, now.tasks_in(name), now.standbys_in(name)) for name in names])
        errors = [each for each in found if isinstance(each, BaseException)]
        for error in sorted(errors, key=lambda e: not isinstance(e, ContainerLostError)):
            raise error
        return found  # type: ignore[return-value]

    # What is seen without a call.

    def beats(self) -> list[Beat]:
        """The last beats: a container that stands still, or is gone, has no newer one."""
        for name, container in list(self._containers.items()):
            process = self.processes.get(name)
            if process is not None and not process.dead and process.stopped_until <= self._scheduler.now_ns:
                self._last_beats[name] = container.beat(0)
        return [self._last_beats[name] for name in self._containers if name in self._last_beats]

    def metrics(self) -> Any:
        return self._past_metrics

    def drop_attempts(self) -> None:
        """Nothing: a new run says so to each container."""

    def name_of(self, task: int) -> str:
        return self._assignment.homes[task]

    # The direct way.

    tls: TlsIdentity | None = None

    def lanes(self) -> tuple[Lane, ...]:
        """Every container with its tasks."""
        found = ((each, tuple(self._assignment.tasks_in(name))) for name, each in self._containers.items())
        return tuple(Lane(_address(container), tasks) for container, tasks in found if tasks)

    def found(self, address: ContainerAddress) -> tuple[Process | None, Container | None]:
        """The container with this address, and its process."""
        return self.processes.get(address.container), self._containers.get(address.container)


def _address(container: Container) -> ContainerAddress:
    return ContainerAddress(container.container, container.incarnation, "here", 1, 1, "", "", "", (), "driver")


def together(calls: list[Callable[[], T]], *, leaves: bool = False) -> list[T | BaseException]:
    """Do all calls at once, each in a thread of this process. Returns results and errors in their order.

    With `leaves`, only the first one is waited for: the others go on beside whatever follows.
    """
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads[:1] if leaves else threads:
        thread.join()
    return found


class SimulatedRunner(InProcessRunner):
    """Attempts of one stage run at once, in workers; some die, some run twice."""

    fleet: SimulatedFleet

    def __init__(self, job: ClaimedJob, fleet: SimulatedFleet, trouble: Trouble) -> None:
        super().__init__(job, fleet)
        self.fleet = fleet
        self._trouble = trouble
        self._lingers = False
        """True if attempts may take long, because some that an earlier run has left may still come."""

    def run(self, epoch: int, batch: Batch, ranges: BatchRanges) -> list[Report]:
        self._cancelled.clear()
        tasks = range(self._job.settings.tasks)
        try:
            self.fleet.ask(START_RUN, epoch, StartRun(batch))
            packets = self._stage_of([partial(self._source, batch, ranges)])
            for stage in self._job.topology.container_stages:
                mine, others = split(packets, stage.number)
                packets = others + self._stage_of(
                    [
                        partial(self._attempt, epoch, batch, stage.number, task, [p for p in mine if p.dest == task])
                        for task in tasks
                    ]
                )
            packets = self._sinks(epoch, batch, packets)
            self._step("reports")
        except RetryableError as error:
            raise RunBrokenError(str(error)) from error
        return [Report.decode(bytes(p.payload or b"")) for p in packets if p.stage == REPORT_STAGE]

    def _source(self, batch: Batch, ranges: BatchRanges) -> list[Packet]:
        portions = {task: ranges.by_task.get(task, ()) for task in range(self._job.settings.tasks)}
        with closing(self._outer()) as stages:
            return list(stages.read("", batch, portions, ReadProgress()))

    def _stage_of(self, attempts: list[Callable[[], list[Packet]]]) -> list[Packet]:
        """All attempts of a stage. One that runs twice has its messages read from either, task by task."""
        self._step("stage")
        trouble, choices = self._trouble, self._trouble.scheduler.choices
        twice = [trouble.happens(trouble.rates.attempt) for _ in attempts]
        again = [attempt for attempt, doubled in zip(attempts, twice, strict=True) if doubled]
        trouble.counts["doubled attempt"] += len(again)
        broken = trouble.happens(trouble.rates.attempt)
        begun = [*attempts, *again]
        if broken:
            self._lingers = True
            begun[1:] = [self._late(each) if trouble.happens(trouble.rates.late) else each for each in begun[1:]]
        found = together(begun, leaves=broken)
        if broken:
            trouble.counts["broken run"] += 1
            raise RunBrokenError("simulated: a worker died")
        errors = [each for each in found if isinstance(each, BaseException)]
        for error, doubled in zip(found, twice, strict=False):
            if not doubled and any(words in str(error) for words in _DISTURBED):
                trouble.broken.append(f"another run has disturbed this one: {error}")
        if errors:
            raise next((e for e in errors if not isinstance(e, PenstockError)), errors[0])
        firsts, seconds = found[: len(attempts)], iter(found[len(attempts) :])
        sent: list[Packet] = []
        for first, doubled in zip(firsts, twice, strict=True):
            packets: Any = first
            if doubled:
                second: Any = next(seconds)
                read = choices.draw(3)  # the first one's, the second one's, or some of either
                packets = packets if read == 0 else second if read == 1 else _mixed(packets, second)
                trouble.counts["mixed attempts"] += read == 2
            sent.extend(packets)
        self._step("stage")
        return sent

    def _late(self, attempt: Callable[[], list[Packet]]) -> Callable[[], list[Packet]]:
        """The attempt begins later, when nobody waits for it any more."""
        after = (0.25, 0.5, 1.0, 3.0)[self._trouble.scheduler.choices.draw(4)]

        def begin() -> list[Packet]:
            self._trouble.scheduler.sleep(after)
            return attempt()

        self._trouble.counts["late attempt"] += 1
        return begin

    def _attempt(self, epoch: int, batch: Batch, stage: int, task: int, packets: Iterable[Packet]) -> list[Packet]:
        packets = list(packets)
        if packets and self._trouble.happens(self._trouble.rates.attempt):
            self._trouble.counts["lost packet"] += 1
            lost = self._trouble.scheduler.choices.draw(len(packets))
            del packets[lost]
        super_attempt = super()._attempt
        return self.fleet.call(
            self.fleet.name_of(task), lambda _: super_attempt(epoch, batch, stage, task, self._coming(packets))
        )

    def _coming(self, packets: list[Packet]) -> Iterator[Packet]:
        """The packets as they come to a container, the rest of them perhaps later."""
        if self._lingers and self._trouble.happens(self._trouble.rates.late):
            self._trouble.scheduler.sleep((0.1, 0.4, 1.0, 3.0)[self._trouble.scheduler.choices.draw(4)])
        yield from packets


def _mixed(first: list[Packet], second: list[Packet]) -> list[Packet]:
    """The report and the packets for tasks of even numbers from one attempt, the others from another."""
    return [p for p in first if p.stage == REPORT_STAGE or p.dest % 2 == 0] + [
        p for p in second if p.stage != REPORT_STAGE and p.dest % 2
    ]
