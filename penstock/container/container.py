"""A container: its process, its present epoch, and the way from one epoch to the next.

An epoch has its tasks, its services, and the operations that the driver may call on them. The parts of wings are
services here, between the commits and the attempts. No module of this package knows one.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.batch.batch import NO_BATCH, Due
from penstock.checkpoint.record import CheckpointId
from penstock.config.model import JobConfig
from penstock.container.attempts import Activity, Attempts
from penstock.container.commit import Committers
from penstock.container.part import ContainerParts
from penstock.container.restorer import RestoredTask, Restorer
from penstock.container.shared import EpochResources, Service, Services, engine_metrics
from penstock.errors import ContainerLostError
from penstock.host.log_lines import PassedOn
from penstock.host.position_page import void_page
from penstock.metrics.snapshot import GaugeValue, MetricId, Row, Snapshot
from penstock.runtime.stage.task_instance import HOLD_SECONDS, TaskInstance
from penstock.state.kept import KeptStores
from penstock.wing import check_wings
from penstock.wire import protocol
from penstock.wire.ports import JobPackage


class OpenTasks(Service):
    """The tasks and their stores, as the first service: everything else stops before they are closed."""

    name = "tasks"

    def __init__(self, tasks: Mapping[int, RestoredTask], resources: EpochResources) -> None:
        self._tasks = tasks
        self._instances = {number: task.instance for number, task in tasks.items()}
        self._resources = resources
        self.keep = True
        """False: no other epoch follows, so no store needs to stay open."""

    def stop(self) -> None:
        deadline = self._resources.time_to_go_back()
        for task in self._tasks.values():
            task.leave(self._resources, deadline, keep=self.keep)

    def metrics(self) -> Snapshot:
        engines = [
            engine_metrics(number, store, task.engine(store))
            for number, task in self._instances.items()
            for store in self._resources.stores
        ]
        return Snapshot().merged(*engines)


class Epoch:
    """Everything a container holds in one epoch. Thread-safe: calls come from Flight's threads."""

    def __init__(
        self,
        resources: EpochResources,
        request: protocol.OpenEpoch,
        cancelled: threading.Event,
        report: Callable[[int], None],
    ) -> None:
        """Restore the tasks; the resources are the epoch's from here on, and closed if that fails.

        Args:
            cancelled: once it is set, the restore is given up.
            report: called with a number of bytes that were restored.
        """
        self.number = resources.epoch
        self._resources = resources
        try:
            self.wings = ContainerParts(resources, request)
            restorer = Restorer(resources, request, self.wings)
            restored = restorer.restore(cancelled, report)
        except BaseException:
            resources.close()
            raise
        self.notes = tuple(restorer.notes)
        self.next_due: Mapping[int, Mapping[str, Due]] = restorer.next_due
        self.tasks: Mapping[int, TaskInstance] = {number: task.instance for number, task in restored.items()}
        self.in_place = tuple(sorted(number for number, task in restored.items() if task.in_place))
        """The tasks whose stores were all here."""
        self._open_tasks = OpenTasks(restored, resources)
        self._commits = Committers(resources, restored, self.wings)
        self.attempts = Attempts(self.number, self.tasks)
        self._starting = threading.Lock()
        """A call that comes late must not admit its run in the place of a later one."""
        self._admitted = (NO_BATCH.number, NO_BATCH.run)
        self.services = Services()
        """Background work beside the calls, in the order of its start."""
        for service in (
            self._open_tasks,
            self._commits,
            *self.wings,
            self.attempts,
        ):
            self.services.add(service)

    @property
    def package(self) -> JobPackage:
        return self._resources.package

    @property
    def pending_bytes(self) -> int:
        return sum(task.pending_bytes for task in self.tasks.values())

    @property
    def wants_commit(self) -> bool:
        """True if a backend waits for a commit although nothing may have changed."""
        return self._commits.wants_commit

    def metrics(self) -> Snapshot:
        own = self._resources.metrics.snapshot(), self._resources.standby_metrics.snapshot()
        return Snapshot().merged(*own, self.services.metrics())

    def start_run(self, request: protocol.StartRun) -> None:
        """Admit attempts of this run, and none of an earlier one. Idempotent. Raises ContainerLostError if a later one
        was admitted."""
        batch = request.batch
        run = batch.number, batch.run
        with self._starting:
            if run < self._admitted:
                raise ContainerLostError(f"{batch} came after a later run")
            if run > self._admitted:
                self._admitted = run
                self.services.start_run(batch)

    def end(self, request: protocol.EndBatch) -> None:
        """Apply the batch in every task of this container, exactly these attempts. Idempotent.

        Raises RetryableError while stores are being copied: nothing was applied yet.
        """
        if self.tasks.keys() != request.tokens.keys():
            there = sorted(self.tasks)
            raise ContainerLostError(f"End names tasks {sorted(request.tokens)}, this container has {there}")
        deadline = time.monotonic() + HOLD_SECONDS
        for instance in self.tasks.values():
            instance.await_copies(max(0.0, deadline - time.monotonic()))
        for task, instance in self.tasks.items():
            instance.end(request.batch.number, request.tokens[task])

    def snapshot(self, request: protocol.TakeSnapshot) -> None:
        self._commits.snapshot(CheckpointId.parse(request.checkpoint_id), last=request.last)

    def upload(self, request: protocol.UploadSnapshot) -> protocol.UploadResult:
        return self._commits.upload(CheckpointId.parse(request.checkpoint_id))

    def clean_up(self, request: protocol.CleanUp) -> None:
        """Release what was kept for the case that the checkpoint would not reach the log."""
        self._commits.clean_up(CheckpointId.parse(request.checkpoint_id), request.markers)

    def wind_down(self, request: protocol.WindDown) -> list[Row]:
        """Give background work time to finish. Returns the metrics, because no beat may come any more."""
        self.services.wind_down(self.package.config.task.shutdown_ms / 1000)
        return self.metrics().rows()

    def leave(self, *, keep: bool = False) -> None:
        """Stop and join everything, and close the tasks. With `keep`, stores that are exactly at the last checkpoint,
        or can go back to it, stay open for the next epoch of this process; other working copies are removed."""
        self._open_tasks.keep = keep
        self.services.stop()
        self._resources.close()


logger = logging.getLogger(__name__)
_CLOSE_SECONDS = 10.0


class Audience:
    """The listeners to a container's beats. Thread-safe.

    A driver takes a container whose beats broke off for lost, and makes no further call to it. If the driver's run ends
    then, nobody closes the container: it has to end by itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._listeners = 0
        self._left_at: float | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._listeners += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._listeners -= 1
            self._left_at = self._clock.monotonic()

    @property
    def absent_s(self) -> float:
        """Seconds since the last listener left; 0.0 while somebody listens, and before anybody has: a container that
        was started beside a running batch is not listened to before that has ended."""
        with self._lock:
            return 0.0 if self._listeners or self._left_at is None else self._clock.monotonic() - self._left_at


class Container:
    """The state of one container process. Thread-safe: calls come from Flight's threads."""

    def __init__(self, container: str, incarnation: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.container = container
        self._clock = clock
        self.incarnation = incarnation
        self.closed = threading.Event()
        """Set once the process should end."""
        self.audience = Audience(clock)
        self.passed_on = PassedOn()
        """The lines of the application for the driver."""
        self.renew_port: Callable[[str], protocol.RenewedPort] = _has_no_port
        self._lock = threading.Lock()
        self._number = -1
        self._epoch: Epoch | None = None
        self._past = Snapshot()
        self._left: Epoch | None = None
        """The epoch that is being left: its counters are not in the past yet."""
        self._cancel_restore = threading.Event()
        self._open_lock = threading.Lock()
        self._kept_stores = KeptStores(incarnation)
        self._of: tuple[str, JobConfig] | None = None
        """The job of the present epoch, and its configuration."""

    @property
    def tasks(self) -> Mapping[int, TaskInstance]:
        """Empty before the first epoch."""
        with self._lock:
            return {} if self._epoch is None else self._epoch.tasks

    def open(
        self,
        identity: protocol.Identity,
        request: protocol.OpenEpoch,
        package: JobPackage,
        report: Callable[[int], None],
    ) -> Epoch:
        """Enter a new epoch: cancel and join the work of the older one, then restore the tasks.

        If something cannot be cancelled within `task.shutdown.ms`, the process ends: the driver sees a lost container.
        """
        with self._lock:
            self.check_incarnation(identity)
            if identity.epoch <= self._number:
                raise ContainerLostError(f"epoch {identity.epoch} is not newer than {self._number}")
            self._number = identity.epoch
            self._cancel_restore.set()
        check_wings(package.wings, f"container {self.container} on host `{socket.gethostname()}`")
        shutdown_s = package.config.task.shutdown_ms / 1000
        if not self._open_lock.acquire(timeout=shutdown_s):
            _exit("an older restore did not stop in time")
        try:
            self._leave(shutdown_s)
            if (package.job_uid, package.config) != self._of:
                self._kept_stores.keep_only(())  # another run: what is open was made by other rules
                self._of = package.job_uid, package.config
            self._cancel_restore = cancelled = threading.Event()
            with self._lock:
                self._check_newest(identity)
            resources = EpochResources(
                package,
                self.container,
                identity.epoch,
                len(request.tasks),
                kept_stores=self._kept_stores,
                clock=self._clock,
            )
            try:
                resources.check_root()
            except BaseException:
                resources.close()
                raise
            epoch = Epoch(resources, request, cancelled, report)
            self._kept_stores.drop_kept()
            with self._lock:
                self._epoch = epoch
            return epoch
        finally:
            self._open_lock.release()

    @property
    def current(self) -> Epoch | None:
        """None before the first epoch."""
        with self._lock:
            return self._epoch

    def epoch(self, identity: protocol.Identity) -> Epoch:
        """The epoch that a call is meant for. Raises ContainerLostError if the container is in another one."""
        with self._lock:
            self.check_incarnation(identity)
            if self._epoch is None or identity.epoch != self._number:
                raise ContainerLostError(f"the call is of epoch {identity.epoch}, this container is in {self._number}")
            return self._epoch

    def check_incarnation(self, identity: protocol.Identity) -> None:
        """Raise ContainerLostError if a call is meant for another process."""
        if identity.incarnation != self.incarnation:
            raise ContainerLostError(
                f"the call is meant for incarnation {identity.incarnation}, this process is {self.incarnation}"
            )

    def beat(self, resident_bytes: int) -> protocol.Beat:
        with self._lock:
            epoch = self._epoch
        activity = Activity(NO_BATCH.number, {}) if epoch is None else epoch.attempts.activity()
        keys, keyed = ([], {}) if epoch is None else epoch.attempts.keys.top()
        return protocol.Beat(
            self.container,
            self.incarnation,
            resident_bytes,
            activity.stalled_ms,
            0 if epoch is None else epoch.pending_bytes,
            activity.processing,
            activity.batch,
            activity.processed,
            epoch=-1 if epoch is None else epoch.number,
            ready=() if epoch is None else epoch.wings.ready(),
            wings={} if epoch is None else {wing: protocol.raw(state) for wing, state in epoch.wings.states().items()},
            overdue=activity.overdue,
            wants_commit=epoch is not None and epoch.wants_commit,
            work=list(activity.work),
            keys=keys,
            keyed=keyed,
        )

    def metrics(self) -> Snapshot:
        """The metrics of this container and its tasks: counters of all epochs, gauges of the present one."""
        with self._lock:
            epoch, left, past = self._epoch, self._left, self._past
        if left is not None:
            past = past.merged(left.metrics().without_gauges())
        if epoch is None:
            return past
        own = {MetricId(f"container {self.container}", "container", "pending-bytes"): GaugeValue(epoch.pending_bytes)}
        return past.merged(epoch.metrics(), Snapshot(own))

    def close(self) -> None:
        self._leave(_CLOSE_SECONDS, keep=False)
        self._kept_stores.close()

    def _leave(self, deadline_s: float, *, keep: bool = True) -> None:
        with self._lock:
            epoch, self._epoch = self._epoch, None
            self._left = epoch
        if epoch is None:
            return

        def give_up() -> None:
            left = ", ".join(f"{name} ({doing})" if doing else name for name, doing in epoch.services.status().items())
            _exit(f"the work of epoch {epoch.number} did not end within {deadline_s:.0f} s (task.shutdown.ms): {left}")

        deadline = threading.Timer(deadline_s, give_up)
        deadline.daemon = True
        deadline.start()
        try:
            epoch.leave(keep=keep)
        finally:
            deadline.cancel()
        with self._lock:
            self._past, self._left = self._past.merged(epoch.metrics().without_gauges()), None

    def _check_newest(self, identity: protocol.Identity) -> None:
        if identity.epoch != self._number:
            raise ContainerLostError(f"epoch {identity.epoch} was overtaken by {self._number}")


def _has_no_port(callers: str) -> protocol.RenewedPort:
    raise ContainerLostError("this container has no port")


def _exit(reason: str) -> None:
    void_page()
    logger.critical("%s; this container ends itself", reason)
    logging.shutdown()
    os._exit(70)
