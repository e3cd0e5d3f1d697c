"""The containers of a run: starting them, which task is where, calls to all of them, and noticing that one is lost."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.core.rdd import RDD
from pyspark.serializers import CPickleSerializer

from penstock.config.model import JobConfig
from penstock.container.client import ContainerClient
from penstock.container.launch import ensure_containers
from penstock.container.protocol import (
    CleanUpCall,
    CommitCall,
    ContainerAddress,
    ContainerSpec,
    EndCall,
    FinishCall,
    OpenCall,
    StartRun,
)
from penstock.engine.assignment import assign_tasks
from penstock.engine.worker import Lane
from penstock.errors import ContainerLostError, PenstockError, PenstockTimeoutError, RetryableError

logger = logging.getLogger(__name__)
T = TypeVar("T")
_CALL_SECONDS = 60
_CLOSE_SECONDS = 15
_MONITOR_SECONDS = 0.25
_BACKOFF_SECONDS = 0.2
_NOTES = 8
Markers = Mapping[str, Mapping[str, Mapping[str, str]]]


class ContainerDirectory:
    """All containers of one run.

    Task assignment is sticky: a task stays in its container as long as that lives.
    """

    def __init__(
        self, context: SparkContext, config: JobConfig, spec: ContainerSpec, tasks: int, abort: threading.Event
    ) -> None:
        """`abort`: nothing more is waited for once it is set."""
        self._abort = abort
        self._context = context
        self._config = config
        self._spec = spec
        self._tasks = tasks
        self._clients: dict[str, ContainerClient] = {}
        self._homes: dict[int, str] = {}
        """Task -> container."""
        self._expected = _configured_executors(context)
        """How many executors there should be, or were at the most."""
        self._condemned: set[str] = set()
        """Incarnations that count as lost, whether their processes know it or not."""
        self._lost = threading.Event()
        self._on_lost: Callable[[], None] = lambda: None
        self._stopping = threading.Event()
        self._monitor = threading.Thread(target=self._watch, name="container-monitor", daemon=True)
        self._calls = ThreadPoolExecutor(max_workers=64, thread_name_prefix="container-call")

    def start(self, on_lost: Callable[[], None]) -> None:
        """Start containers on every executor. `on_lost` is called from another thread when one is lost."""
        self._on_lost = on_lost
        self.ensure()
        self._monitor.start()

    # Starting and assigning.

    def ensure(self) -> None:
        """Drop lost containers, start what is missing on the executors there are, and give every task a home.

        Waits until there are as many executors as at the first start, or `job.container.start.timeout.ms` has
        passed; one that does not come back leaves its tasks to the others.
        """
        self._lost.clear()  # first: what is lost from here on sets it again
        for name, client in list(self._clients.items()):
            if client.lost is not None:
                client.disconnect()
                self._condemned.add(client.address.incarnation)
                del self._clients[name]
        found = self._await_executors()
        for address in found:
            if address.container not in self._clients:
                client = ContainerClient(address, self._spec.secret)
                self._clients[address.container] = client
                client.listen(self._lose)
        self._assign()

    def _await_executors(self) -> list[ContainerAddress]:
        deadline = time.monotonic() + self._config.container.start_timeout_ms / 1000
        while True:
            executors = _executors(self._context)
            late = time.monotonic() > deadline
            found = self._try_launch(executors, max(1.0, deadline - time.monotonic()), last_try=late)
            hosts = {(address.machine, address.executor_pid) for address in found}
            if len(hosts) >= max(self._expected, len(executors)):
                self._expected = len(hosts)
                return found
            if late and found:
                logger.warning(
                    "only %d of %d executors have containers: going on with them", len(hosts), self._expected
                )
                return found
            if late:
                raise PenstockTimeoutError(
                    "no executor came up within job.container.start.timeout.ms="
                    f"{self._config.container.start_timeout_ms}"
                )
            self._stopping.wait(0.2)

    def _try_launch(self, executors: list[Executor], timeout_s: float, *, last_try: bool) -> list[ContainerAddress]:
        """A cluster's executor may be on its way out while Spark still lists it, so there a failure is not final."""
        if not executors:
            return []
        try:
            return self._launch(executors, timeout_s)
        except ContainerLostError as error:
            if last_try or _is_local(executors):
                raise
            logger.warning("trying again: %s", error)
            return []

    def _launch(self, executors: list[Executor], timeout_s: float) -> list[ContainerAddress]:
        """Run one task per executor, preferred there, that makes sure its containers run."""
        spec, slots = self._spec, max(executor.slots for executor in executors)
        condemned = frozenset(self._condemned)
        rdd = _placed(self._context, executors)
        launch = rdd.mapPartitions(lambda _: iter(ensure_containers(spec, slots, timeout_s, condemned)))
        try:
            with _own_job_group(self._context):
                found = launch.collect()
        except Exception as error:
            raise ContainerLostError(f"the containers could not be started: {_first_lines(error)}") from error
        return list({address.container: address for address in found}.values())

    def _assign(self) -> None:
        if not self._clients:
            raise ContainerLostError("there is no container")
        copies = {name: client.address.copies for name, client in self._clients.items()}
        self._homes = assign_tasks(self._tasks, self._homes, copies)

    def lanes(self) -> tuple[Lane, ...]:
        """Every container with the tasks that are in it."""
        found = (Lane(client.address, tuple(self._tasks_of(client))) for client in self._clients.values())
        return tuple(lane for lane in found if lane.tasks)

    def resident_bytes(self) -> int:
        """Memory of all containers, as of their last beats."""
        return sum(c.last_beat.resident_bytes for c in self._clients.values() if c.last_beat is not None)

    def pending_bytes(self) -> int:
        """What was written to stores since the last commit began, as of the containers' last beats."""
        return sum(c.last_beat.pending_bytes for c in self._clients.values() if c.last_beat is not None)

    # Calls to all.

    def open(
        self,
        epoch: int,
        last_ended: int,
        checkpoint_id: str | None,
        markers: Markers | None,
        covered: list[str],
        package: bytes,
        progress: Callable[[int], None],
    ) -> None:
        """Enter an epoch in every container, restoring all tasks in parallel. `progress` gets the bytes so far."""
        restored: dict[str, int] = {}
        noted: list[str] = []
        deadline = self._config.container.restore_timeout_ms / 1000

        def one(client: ContainerClient) -> None:
            tasks = self._tasks_of(client)
            own = None if markers is None else _plain(markers, tasks)
            call = OpenCall(client.identity(epoch), last_ended, checkpoint_id, own, covered, tasks)
            for done, notes in client.open(call, package, deadline):
                restored[client.address.container] = done
                progress(sum(restored.values()))
                noted.extend(notes)

        self._all(one)
        for note in noted[:_NOTES]:
            logger.error("%s", note)
        if len(noted) > _NOTES:
            logger.error("%d more restores fell back to another backend: see the containers' logs", len(noted) - _NOTES)

    def start_run(self, epoch: int, batch: int, run: int) -> None:
        """A run of a batch begins."""
        self._all(lambda c: c.start_run(StartRun(c.identity(epoch), batch, run), _CALL_SECONDS))

    def end(self, epoch: int, batch: int, tokens: Mapping[int, Mapping[int, str]]) -> None:
        """Apply the batch everywhere. Raises ContainerLostError if one refuses or does not answer."""

        def one(client: ContainerClient) -> None:
            own = {str(t): {str(s): token for s, token in tokens.get(t, {}).items()} for t in self._tasks_of(client)}
            client.end(EndCall(client.identity(epoch), batch, own), _CALL_SECONDS)

        self._all(one)

    def snapshot(self, epoch: int, checkpoint_id: str, *, last: bool) -> None:
        """The synchronous part of a commit, everywhere. `last`: the run is to end with it."""
        self._all(lambda c: c.snapshot(CommitCall(c.identity(epoch), checkpoint_id, last), _CALL_SECONDS))

    def upload(
        self, epoch: int, checkpoint_id: str, abandoned: threading.Event
    ) -> dict[str, dict[str, dict[str, str]]]:
        """Make the snapshot durable everywhere; task -> factory -> store -> marker.

        Raises:
            PenstockTimeoutError: not within `task.commit.timeout.ms`, retries of what may pass included.
            ContainerLostError: a container is lost, or the commit was abandoned.
        """
        merged: dict[str, dict[str, dict[str, str]]] = {}
        deadline = time.monotonic() + self._config.task.commit_timeout_ms / 1000

        def upload(client: ContainerClient) -> dict[str, dict[str, dict[str, str]]]:
            pause = _BACKOFF_SECONDS
            while True:
                remaining = deadline - time.monotonic()
                try:
                    return client.upload(CommitCall(client.identity(epoch), checkpoint_id), max(1.0, remaining))
                except ContainerLostError:
                    raise
                except RetryableError as error:  # an upload may be repeated, with the same effect
                    if remaining < pause:
                        raise PenstockTimeoutError(
                            f"checkpoint {checkpoint_id} was not uploaded within task.commit.timeout.ms="
                            f"{self._config.task.commit_timeout_ms}; the last failure: {error}"
                        ) from error
                    logger.warning("the upload of checkpoint %s is tried again: %s", checkpoint_id, error)
                    if abandoned.wait(pause):
                        raise ContainerLostError("the commit was abandoned") from error
                    pause = min(2 * pause, 10.0)

        for markers in self._all(upload):
            merged.update(markers)
        return merged

    def clean_up(self, epoch: int, checkpoint_id: str, markers: Markers) -> None:
        """The checkpoint is in the log: containers let go of what they kept in case it would not be."""

        def clean(client: ContainerClient) -> None:
            own = _plain(markers, self._tasks_of(client))
            client.clean_up(CleanUpCall(client.identity(epoch), checkpoint_id, own), _CALL_SECONDS)

        self._all(clean)

    def finish(self, epoch: int) -> None:
        """The last checkpoint is in the log: let containers end what they do in the background, for at most
        `task.shutdown.ms`. Errors are logged: it would only have made the next start quicker."""
        timeout_ms = self._config.task.shutdown_ms
        try:
            self._all(lambda c: c.finish(FinishCall(c.identity(epoch), timeout_ms), timeout_ms / 1000 + _CLOSE_SECONDS))
        except PenstockError as error:
            logger.warning("a container did not end what it did in the background: %s", error)

    def close(self, epoch: int) -> None:
        """Close all containers. Errors are logged: the state that counts is in the checkpoint."""
        self._stopping.set()
        alive = [client for client in self._clients.values() if client.lost is None]
        futures = [self._calls.submit(client.close, epoch, _CLOSE_SECONDS) for client in alive]
        for future in futures:
            try:
                future.result()
            except PenstockError as error:
                logger.info("a container did not close by itself: %s", error)
        for client in self._clients.values():
            client.disconnect()
        self._calls.shutdown(wait=False, cancel_futures=True)

    # Noticing losses.

    @property
    def any_lost(self) -> bool:
        """Whether a container was lost since the last `ensure`."""
        return self._lost.is_set()

    def loss(self) -> str:
        """Which container was lost, and why."""
        lost = [f"container {c.address.container}: {c.lost}" for c in self._clients.values() if c.lost]
        return "; ".join(lost) or "a container was lost"

    def _lose(self, client: ContainerClient) -> None:
        if self._stopping.is_set():
            return
        self._lost.set()
        self._on_lost()

    def _watch(self) -> None:
        """Silence for `container.lost.ms` is a loss, however healthy the sockets look; so is an attempt that stands
        still for `container.attempt.timeout.ms`. A driver that was stopped itself gives everyone a new chance."""
        last = time.monotonic()
        while not self._stopping.wait(_MONITOR_SECONDS):
            now = time.monotonic()
            if self._lost.is_set():
                self._on_lost()  # again: the first time there may have been no Spark job yet to cancel
            if now - last > 10 * _MONITOR_SECONDS:
                for client in list(self._clients.values()):
                    client.last_beat_at = now
            last = now
            for client in list(self._clients.values()):
                if client.lost is None and (reason := self._verdict(client, now)) is not None:
                    client.lost = reason
                    self._lose(client)

    def _verdict(self, client: ContainerClient, now: float) -> str | None:
        silence_ms = (now - client.last_beat_at) * 1000
        if silence_ms > self._config.container.lost_ms:
            return f"silent for {silence_ms:.0f} ms, container.lost.ms is {self._config.container.lost_ms}"
        beat = client.last_beat
        if beat is not None and beat.stalled_ms > self._config.container.attempt_timeout_ms:
            return (
                f"the application has been processing one message for {beat.stalled_ms} ms, "
                f"container.attempt.timeout.ms is {self._config.container.attempt_timeout_ms}"
            )
        return None

    def _tasks_of(self, client: ContainerClient) -> list[int]:
        return sorted(task for task, home in self._homes.items() if home == client.address.container)

    def _all(self, call: Callable[[ContainerClient], T]) -> list[T]:
        """Call every container that has tasks, at once. Waits for all; a loss is raised before any other error."""
        busy = [client for client in self._clients.values() if self._tasks_of(client)]
        futures = {client.address.container: self._calls.submit(call, client) for client in busy}
        errors: list[BaseException] = []
        for client in busy:
            error = _wait(client, futures[client.address.container], self._abort)
            if error is not None:
                errors.append(error)
        for error in sorted(errors, key=lambda e: not isinstance(e, ContainerLostError)):
            raise error
        return [future.result() for future in futures.values()]


def _wait(client: ContainerClient, future: Future[T], abort: threading.Event) -> BaseException | None:
    """What the call ended with. One to a container that is lost meanwhile is left to its own deadline."""
    while True:
        try:
            return future.exception(_MONITOR_SECONDS)
        except TimeoutError:
            if client.lost is not None:
                return ContainerLostError(f"container {client.address.container}: {client.lost}")
            if abort.is_set():
                return ContainerLostError("the run is told to end at once")


def _plain(markers: Markers, tasks: Iterable[int]) -> dict[str, dict[str, dict[str, str]]]:
    return {str(t): {f: dict(s) for f, s in markers.get(str(t), {}).items()} for t in tasks}


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor as Spark knows it. In local mode the driver is the only one."""

    id: str
    host: str
    slots: int


def _executors(context: SparkContext) -> list[Executor]:
    """Every live executor that runs tasks."""
    store: Any = context._jsc.sc().statusStore()  # noqa: SLF001 - no public way
    listed = store.executorList(True)
    found = [listed.apply(i) for i in range(listed.size())]
    return [
        Executor(str(e.id()), str(e.hostPort()).rpartition(":")[0], int(e.totalCores()))
        for e in found
        if e.totalCores()
    ]


@contextmanager
def _own_job_group(context: SparkContext) -> Iterator[None]:
    """What runs inside is not cancelled when the job's batch is."""
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup("penstock-launch", "Starting Penstock containers")
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away


def _is_local(executors: list[Executor]) -> bool:
    return [executor.id for executor in executors] == ["driver"]


def _configured_executors(context: SparkContext) -> int:
    """How many executors the session asked for, as far as it says."""
    cluster = re.match(r"local-cluster\[\s*(\d+)", str(context.master))
    return int(cluster[1]) if cluster else int(context.getConf().get("spark.executor.instances", "1") or 1)


def _placed(context: SparkContext, executors: list[Executor]) -> Any:
    """An RDD of one element per executor, each preferred there."""
    if _is_local(executors):
        return context.parallelize([0], 1)
    jvm: Any = context._jvm  # noqa: SLF001 - preferred locations exist in the JVM's API only
    serializer = CPickleSerializer()
    elements = jvm.java.util.ArrayList()
    for number, executor in enumerate(executors):
        wanted = jvm.java.util.ArrayList()
        wanted.add(f"executor_{executor.host}_{executor.id}")
        scala_wanted = jvm.org.apache.spark.api.python.PythonUtils.toSeq(wanted)
        elements.add(jvm.scala.Tuple2(serializer.dumps(number), scala_wanted))  # type: ignore[no-untyped-call]
    sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq(elements)
    scala_rdd = context._jsc.sc().makeRDD(sequence, jvm.scala.reflect.ClassTag.Any())  # noqa: SLF001
    return RDD(scala_rdd.toJavaRDD(), context, serializer)


def _first_lines(error: BaseException, count: int = 12) -> str:
    return "\n".join(str(error).splitlines()[:count])
