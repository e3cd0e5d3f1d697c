"""The containers of a run: their start, their tasks, and calls to all of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from pyspark import SparkContext

from penstock.base.retry import retry
from penstock.base.wording import counted, size_text
from penstock.batch.batch import Due
from penstock.config.model import JobConfig
from penstock.container.launch import kill
from penstock.errors import ContainerLostError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.spark.containers.launch import ContainerLauncher
from penstock.spark.containers.losses import LossWatch, ReplacementLaunch, error_of
from penstock.spark.session.executors import LOCAL_ID
from penstock.spark.workers.packages import CallerIdentities, pickled
from penstock.wire import containers, protocol
from penstock.wire.client import ANY_EPOCH, ContainerClient
from penstock.wire.ports import EpochOpening, Fleet, JobPackage, ignore_answer
from penstock.wire.protocol import CLOSE, CLOSE_SECONDS, OPEN, WIND_DOWN, Call
from penstock.wire.security import TlsIdentity

logger = logging.getLogger(__name__)
_LAST_BEATS_SECONDS = 2.0
"""Longest wait for last beats at the end. The beats of a closed container end at once, those of a host that is cut off
do not."""
Q = TypeVar("Q", bound=protocol.Request)
A = TypeVar("A")
_NOTES = 8


class ContainerDirectory(Fleet):
    """All containers of one run.

    Task assignment is sticky: a task stays in its container as long as that lives.
    """

    def __init__(
        self,
        context: SparkContext,
        config: JobConfig,
        spec: containers.ContainerSpec,
        tasks: int,
        abort: threading.Event,
    ) -> None:
        """`abort`: nothing is waited for once it is set."""
        self._context = context
        self._abort = abort
        self._config = config
        self._callers = CallerIdentities(tls=spec.tls)
        self._spec = spec
        self._tasks = tasks
        self._clients: dict[str, ContainerClient] = {}
        self._assignment = containers.Assignment()
        self._opened: Mapping[int, str] = {}
        """The containers of all tasks in the last epoch that was open."""
        self._standbys = config.job.standbys
        self._executors: frozenset[str] = frozenset()
        """The executors that had containers when tasks were given homes for the last time."""
        self._warned_of_near = False
        self._ended: list[ContainerClient] = []
        """Dropped containers that broke off."""
        self._condemned: set[str] = set()
        """Incarnations that count as lost, even if their processes do not know it."""
        self._past_metrics = Snapshot()
        self._metrics_lock = threading.Lock()
        """Sums of metrics see each container once: among the clients, or among the lost ones."""
        self._losses = LossWatch(
            context, config.container, lambda: list(self._clients.values()), waits=not config.job.standbys
        )
        self._calls = ThreadPoolExecutor(max_workers=64, thread_name_prefix="container-call")
        self._launcher = ContainerLauncher(context, config.container, spec, self._calls, abort)
        self._set_callers()
        self._replacing = ReplacementLaunch(self._launcher, self._calls)

    def start(self, on_lost: Callable[[], None]) -> None:
        """Watch containers from now on. `on_lost` is called from another thread when one is lost."""
        self._losses.start(on_lost)

    # Starting and assigning.

    def deaths(self) -> list[containers.ProcessDeath]:
        """The ends of containers, as far as their hosts have told."""
        known = [*self._ended, *(client for client in self._clients.values() if client.broke_off)]
        found = [client.process_death() for client in known if client.has_answer]
        self._ended = [client for client in self._ended if not client.has_answer]
        return [death for death in found if death is not None]

    def drop_lost(self) -> None:
        """Forget lost containers, and kill those of this host. An executor on a host that no longer answers is given
        up, so that Spark does not wait for its tasks until `spark.network.timeout` has passed."""
        self._losses.lost.clear()  # first: what is lost from here on sets it again
        for client in [client for client in self._clients.values() if client.lost is not None]:
            if client.address.container not in self._clients:
                continue  # it was dropped with its executor
            self._drop(client)
            executor_id = client.address.executor_id
            if executor_id != LOCAL_ID and not client.host_answers():
                self._launcher.give_up(executor_id, f"container {client.address.container}: {client.lost}")
                for other in [c for c in self._clients.values() if c.address.executor_id == executor_id]:
                    self._drop(other)

    def ensure(self) -> None:
        """Drop lost containers, and give every task a home. Missing containers are started on the present executors if
        a task has lost its own, and no standby takes over. Otherwise they are started beside the batches, and come with
        a later epoch.

        Raises:
            ContainerLostError: a container did not start, or cannot be reached.
            PenstockTimeoutError: there is no executor.
        """
        self.drop_lost()
        self._callers.begin_epoch()
        self._set_callers()
        if self._assignment.survives_with(self._clients):
            found = self._replacing.take()  # nobody waits for them: there is a container for every task
            if self._standbys:
                self._replacing.postpone()
        else:
            # A launch that is under way goes on, and comes with a later epoch: it is for executors that came since.
            found = self._replacing.take()
            found += self._launcher.await_containers(frozenset(self._condemned), self._executors)
        found = [address for address in found if address.incarnation not in self._condemned]
        unknown = {address.container: address for address in found if address.container not in self._clients}
        new = [self._client(address) for address in unknown.values()]
        for client in new:
            self._clients[client.address.container] = client
            client.listen(self._losses.lose)
        self._check_reached(new)
        self._renew_ports()
        self._assign()

    @property
    def tls(self) -> TlsIdentity | None:
        """The identity that workers present to containers; None: calls are in clear."""
        return self._callers.current

    def _client(self, address: containers.ContainerAddress) -> ContainerClient:
        return ContainerClient(address, self._spec.secret, self._callers.of(address.callers))

    def _set_callers(self) -> None:
        """Make containers that start from now on accept the newest identity of callers."""
        if self._callers.current is not None:
            self._launcher.spec = replace(self._spec, callers=self._callers.current.certificate)

    def _renew_ports(self) -> None:
        """Give every container that accepts an older identity of callers a new port with a new certificate.

        Raises:
            ContainerLostError: one did not answer. It may have another port by now, which nobody knows.
        """
        tls = self._callers.current
        if tls is None:
            return
        older = [client for client in self._clients.values() if client.address.callers != tls.certificate]
        renewals = [(client, self._calls.submit(client.renew, tls)) for client in older]
        failed = []
        for client, renewal in renewals:
            if (error := error_of(client, renewal, self._abort)) is not None:
                client.lost = client.lost or f"its port was not renewed: {error}"
                failed.append(client.lost)
        if failed:
            self._losses.lost.set()
            raise ContainerLostError("; ".join(failed))

    def newcomers(self) -> list[str]:
        """The containers that were started beside the batches, on executors that had none. Asks Spark every few seconds
        only.

        With standbys: also containers in place of lost ones, or else those whose standbys are ready for tasks that
        should move to them.
        """
        if started := self._replacing.started(frozenset(self._condemned), self._clients):
            return started
        used = Counter(client.address.executor_id for client in self._clients.values())
        if self._launcher.missing(used) if self._standbys else self._launcher.newcomers(used):
            self._replacing.begin(frozenset(self._condemned))
        if not self._standbys:
            return []
        after = self._next_assignment()
        return containers.moved_to(self._assignment, after, self._next_assignment(everything_ready=True))

    def _check_reached(self, clients: list[ContainerClient]) -> None:
        """Wait for the first beats of new containers: an address can be right for its host and wrong for others."""
        deadline = time.monotonic() + self._config.container.lost_ms / 1000
        for client in clients:
            while client.last_beat is None and client.lost is None and time.monotonic() < deadline:
                self._losses.pause(0.01)
            if client.last_beat is None:
                why = client.lost or f"no beat within container.lost.ms={self._config.container.lost_ms}"
                client.lost = client.unreachable(why)
                self._launcher.count_failure(client.address.executor_id)
                raise ContainerLostError(client.lost)
            self._launcher.forget_failures(client.address.executor_id)

    def _drop(self, client: ContainerClient) -> None:
        client.lost = client.lost or "its executor was given up"
        if client.broke_off:
            self._ended.append(client)
        client.disconnect()
        if client.is_here:  # others are killed by the next launch on their host
            kill(client.address)
        self._condemned.add(client.address.incarnation)
        with self._metrics_lock:
            self._past_metrics = self._past_metrics.merged(client.metrics.without_gauges())
            self._clients.pop(client.address.container, None)

    def _assign(self) -> None:
        if not self._clients:
            raise ContainerLostError("there is no container")
        self._assignment = self._next_assignment()
        self._executors = frozenset(client.address.executor_id for client in self._clients.values())
        self._warn_of_near_standbys()

    def _next_assignment(self, *, everything_ready: bool = False) -> containers.Assignment:
        ready = self._assignment.standbys if everything_ready else self.ready()
        return containers.assign(self._tasks, self._assignment, self._places(), self._standbys, ready)

    def _places(self) -> dict[str, containers.ContainerPlace]:
        addresses = [client.address for client in list(self._clients.values())]
        return {
            each.container: containers.ContainerPlace(each.machine, each.executor_id, each.copies) for each in addresses
        }

    def _warn_of_near_standbys(self) -> None:
        """Warn once in a run: a standby on the same executor is lost with it."""
        if not self._standbys or self._warned_of_near:
            return
        near = self._assignment.without_far_standbys(self._places())
        if near:
            self._warned_of_near = True
            logger.warning(
                "%s of %d tasks have no standby on another executor, because there is none with a container: if the "
                "executor is lost, they are restored from their backends (job.standbytasks.replication.factor=%d)",
                len(near),
                self._tasks,
                self._standbys + 1,
            )

    def lanes(self) -> tuple[containers.Lane, ...]:
        """Every container with its tasks.

        Raises:
            ContainerLostError: the containers' certificates have become old, and one did not get another one.
        """
        if self._callers.is_due:
            self._callers.renew()
            self._set_callers()
            self._renew_ports()
        now = self._assignment
        found = (
            containers.Lane(replace(client.address, callers=None), tuple(now.tasks_in(name)))
            for name, client in self._clients.items()
        )
        return tuple(lane for lane in found if lane.tasks)

    def beats(self) -> list[protocol.Beat]:
        return [client.last_beat for client in list(self._clients.values()) if client.last_beat is not None]

    def metrics(self) -> Snapshot:
        """The metrics of all containers, as of their last beats; lost containers keep their last counters."""
        with self._metrics_lock:
            return self._past_metrics.merged(*(self._metrics_of(client) for client in list(self._clients.values())))

    def _metrics_of(self, client: ContainerClient) -> Snapshot:
        """The container's metrics, without the gauges of tasks that have left it."""
        own = f"container {client.address.container}"
        beat = client.last_beat
        memory = 0 if beat is None else beat.resident_bytes
        name, now = client.address.container, self._assignment
        tasks, standbys = now.tasks_in(name), now.standbys_in(name)
        here = {own, *(f"Partition {task}" for task in tasks), *(f"Standby {task}" for task in standbys)}
        gauges = {key: value for key, value in client.metrics.items() if key.source in here}
        gauges[MetricId(own, "container", "physical-memory-bytes")] = GaugeValue(memory)
        return Snapshot({**client.metrics.without_gauges(), **gauges})

    # Calls to all.

    def open(
        self, opening: EpochOpening, package: JobPackage, progress: Callable[[int], None]
    ) -> Mapping[int, Mapping[str, Due]]:
        """Enter an epoch in every container, and restore all tasks in parallel. `progress` gets the bytes restored so
        far. Returns, by task and operator, the times of the oldest timers."""
        data = pickled(package)
        restored: dict[str, int] = {}

        def restoring(container: str, answer: protocol.OpenProgress) -> None:
            restored[container] = answer.size_bytes
            progress(sum(restored.values()))

        began = time.monotonic()
        request = protocol.OpenEpoch(data, opening.last_ended, opening.checkpoint_id, opening.markers, opening.covered)
        answers = self.ask(OPEN, opening.epoch, request, on_answer=restoring)
        if self._opened:
            moved = containers.moves_text(
                self._opened, self._assignment.homes, {t for answer in answers for t in answer.in_place}
            )
            size = size_text(sum(answer.size_bytes for answer in answers))
            logger.warning("epoch %d: %s; %s read in %.1f s", opening.epoch, moved, size, time.monotonic() - began)
        self._opened = self._assignment.homes
        noted = [note for answer in answers for note in answer.notes]
        for note in noted[:_NOTES]:
            logger.error("%s", note)
        if len(noted) > _NOTES:
            more = counted(len(noted) - _NOTES, "more restore")
            logger.error("%s fell back to another backend: see the containers' logs", more)
        return {task: due for answer in answers for task, due in answer.next_due.items()}

    def ask(
        self,
        call: Call[Q, A],
        epoch: int,
        request: Q,
        *,
        abandoned: threading.Event | None = None,
        on_answer: Callable[[str, A], None] = ignore_answer,
    ) -> list[A]:
        """Make a call to every container that has tasks or is a standby, at once, each with what concerns it. Waits for
        all; a loss is raised before any other error.

        Args:
            abandoned: once it is set, nothing is tried again. Without it, a container that is lost has this effect.
            on_answer: called with a container's name and each of its answers, from several threads.

        Returns:
            The last answer of each container.

        Raises:
            ContainerLostError: a container refuses, does not answer, or is lost; or the call was abandoned.
            PenstockTimeoutError: what may pass did not, within `task.commit.timeout.ms`.
        """
        return self._all(
            lambda client: self._ask_one(client, call, epoch, request, abandoned or self._losses.lost, on_answer)
        )

    def _ask_one(
        self,
        client: ContainerClient,
        call: Call[Q, A],
        epoch: int,
        request: Q,
        abandoned: threading.Event,
        on_answer: Callable[[str, A], None],
    ) -> A:
        name, now = client.address.container, self._assignment
        own = request.for_container(now.tasks_in(name), now.standbys_in(name))
        began = time.monotonic()

        def once() -> A:
            timeout_s = call.answer_s(self._config, time.monotonic() - began)
            answer = client.ask(call, epoch, own, timeout_s, lambda answer: on_answer(client.address.container, answer))
            if call.name == WIND_DOWN.name:
                client.note_metrics(answer)  # type: ignore[arg-type]
            return answer

        if call.again is None:
            return once()
        timeout_ms = self._config.task.commit_timeout_ms
        try:
            return retry(
                once,
                replace(call.again, within_s=timeout_ms / 1000),
                interrupt=abandoned,
                on_failure=lambda error: logger.warning("%s: %s", request.waiting, error),
            )
        except ContainerLostError:
            raise
        except RetryableError as error:
            if abandoned.is_set():
                raise ContainerLostError(self.loss(otherwise=f"{request.too_late}: it was abandoned")) from error
            raise PenstockTimeoutError(
                f"{request.too_late} within task.commit.timeout.ms={timeout_ms}; the last failure: {error}"
            ) from error

    def close(self) -> None:
        """Close all containers. Errors are logged: the state that counts is in the checkpoint."""
        self._losses.stop()
        for address in self._replacing.end():
            client = self._client(address)
            self._clients.setdefault(address.container, client)
        self._launcher.end(self._close_unknown)
        alive = [client for client in self._clients.values() if client.lost is None]
        futures = [
            self._calls.submit(client.ask, CLOSE, ANY_EPOCH, protocol.NoArguments(), CLOSE_SECONDS) for client in alive
        ]
        for future in futures:
            try:
                future.result()
            except PenstockError as error:
                logger.info("a container did not close by itself: %s", error)
        deadline = time.monotonic() + _LAST_BEATS_SECONDS
        for client in self._clients.values():
            client.disconnect()
            client.await_end(max(0.0, deadline - time.monotonic()))
        self._launcher.release()
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._losses.close()

    def _close_unknown(self, address: containers.ContainerAddress) -> None:
        """Close a container whose start ended after the run was told to end. From any thread."""
        if address.container in self._clients or address.incarnation in self._condemned:
            return
        client = self._client(address)
        try:
            client.ask(CLOSE, ANY_EPOCH, protocol.NoArguments(), CLOSE_SECONDS)
        except PenstockError as error:
            logger.info("a container did not close by itself: %s", error)
        finally:
            client.disconnect()

    # Losses.

    @property
    def overdue(self) -> str | None:
        return self._losses.overdue

    @property
    def any_lost(self) -> bool:
        return self._losses.lost.is_set()

    def loss(self, otherwise: str = "a container was lost") -> str:
        return self._losses.loss(otherwise)

    def _all(self, call: Callable[[ContainerClient], A]) -> list[A]:
        """Call every container that the assignment concerns, at once. Waits for all; a loss is raised before any other
        error."""
        busy = [client for name, client in self._clients.items() if self._assignment.concerns(name)]
        futures = {client.address.container: self._calls.submit(call, client) for client in busy}
        errors: list[BaseException] = []
        for client in busy:
            error = error_of(client, futures[client.address.container], self._abort)
            if error is not None:
                errors.append(error)
        for error in sorted(errors, key=lambda e: not isinstance(e, ContainerLostError)):
            raise error
        return [future.result() for future in futures.values()]
