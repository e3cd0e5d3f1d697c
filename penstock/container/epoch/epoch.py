"""A container in one epoch: its tasks, its services, and the operations that the driver may call on them.

The parts of wings are services here, between the commits and the attempts. No module of this package knows one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from penstock.batch.batch import NO_BATCH, Due
from penstock.checkpoint.id import CheckpointId
from penstock.container.epoch.attempts import Attempts
from penstock.container.epoch.commit import Committers
from penstock.container.epoch.restorer import RestoredTask, Restorer
from penstock.container.part import ContainerParts
from penstock.container.shared.metrics import engine_metrics
from penstock.container.shared.resources import EpochResources
from penstock.container.shared.services import Service, Services
from penstock.errors import ContainerLostError
from penstock.metrics.snapshot import Row, Snapshot
from penstock.runtime.stage.task_instance import HOLD_SECONDS, TaskInstance
from penstock.wire.package import JobPackage
from penstock.wire.protocol import (
    CleanUp,
    EndBatch,
    OpenEpoch,
    StartRun,
    TakeSnapshot,
    UploadResult,
    UploadSnapshot,
    WindDown,
)


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
        self, resources: EpochResources, request: OpenEpoch, cancelled: threading.Event, report: Callable[[int], None]
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

    def start_run(self, request: StartRun) -> None:
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

    def end(self, request: EndBatch) -> None:
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

    def snapshot(self, request: TakeSnapshot) -> None:
        self._commits.snapshot(CheckpointId.parse(request.checkpoint_id), last=request.last)

    def upload(self, request: UploadSnapshot) -> UploadResult:
        return self._commits.upload(CheckpointId.parse(request.checkpoint_id))

    def clean_up(self, request: CleanUp) -> None:
        """Release what was kept for the case that the checkpoint would not reach the log."""
        self._commits.clean_up(CheckpointId.parse(request.checkpoint_id), request.markers)

    def wind_down(self, request: WindDown) -> list[Row]:
        """Give background work time to finish. Returns the metrics, because no beat may come any more."""
        self.services.wind_down(self.package.config.task.shutdown_ms / 1000)
        return self.metrics().rows()

    def leave(self, *, keep: bool = False) -> None:
        """Stop and join everything, and close the tasks. With `keep`, stores that are exactly at the last checkpoint,
        or can go back to it, stay open for the next epoch of this process; other working copies are removed."""
        self._open_tasks.keep = keep
        self.services.stop()
        self._resources.close()
