"""The commits of a container: every task and backend in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from penstock.checkpoint.id import CheckpointId
from penstock.container.epoch.restorer import RestoredTask
from penstock.container.epoch.task_commit import TaskCommitManager
from penstock.container.shared.part import ContainerParts
from penstock.container.shared.resources import EpochResources
from penstock.container.shared.services import Service
from penstock.errors import RetryableError
from penstock.parallel import each
from penstock.wire.protocol import Markers, UploadResult, raw

_COPIERS = 2
_BASE_POLL_SECONDS = 0.2


class Committers(Service):
    """Commits all tasks of a container. A service, because copies, uploads and the backends' own work run in the
    background."""

    name = "commits"

    def __init__(
        self,
        resources: EpochResources,
        tasks: Mapping[int, RestoredTask],
        wings: ContainerParts,
    ) -> None:
        config = resources.package.config
        self._resources = resources
        self._commits = {
            number: TaskCommitManager(
                task.instance,
                task.backups,
                resources.folders,
                task.marks,
                resources.target,
                keep_copies=config.job.keeps_copies,
                metrics=resources.metrics.of_task(number),
                copied=wings.copied(number),
            )
            for number, task in tasks.items()
        }
        self._wings = wings
        self._uploaders = resources.pool("commit")
        self._copiers = ThreadPoolExecutor(_COPIERS, thread_name_prefix=f"copy-{resources.epoch}")
        self._doing = ""

    @property
    def wants_commit(self) -> bool:
        """True if a backend of a task waits for a commit although nothing may have changed."""
        return any(commit.wants_commit for commit in self._commits.values())

    def snapshot(self, checkpoint_id: CheckpointId, *, last: bool) -> None:
        """Take the snapshot of every task, the synchronous part of a commit. `last`: no other commit is expected
        soon."""
        for commit in self._commits.values():
            commit.snapshot(checkpoint_id, self._copiers, last=last)
        self._wings.snapshot()

    def upload(self, checkpoint_id: CheckpointId) -> UploadResult:
        """Upload the snapshot, in the background. May be called again after a RetryableError."""
        self._doing = f"uploading checkpoint {checkpoint_id}"
        try:
            return self._upload(checkpoint_id)
        finally:
            self._doing = ""

    def _upload(self, checkpoint_id: CheckpointId) -> UploadResult:
        copies = {task: commit.await_copies() for task, commit in self._commits.items()}
        items = [(task, backend) for task, commit in self._commits.items() for backend in commit.backends]
        markers: dict[str, dict[str, dict[str, str]]] = {str(task): {} for task in self._commits}
        others = self._wings.uploads(checkpoint_id)
        while items or others:
            own: list[Callable[[], Any]] = [
                partial(self._commits[task].upload, backend, checkpoint_id, copies[task]) for task, backend in items
            ]
            found = each(self._uploaders, lambda part: part(), [*own, *others])
            others = []
            for (task, backend), given in zip(items, found[: len(items)], strict=True):
                markers[str(task)][backend] = given
            # A checkpoint without any marker of a store could not be restored: it waits for a base.
            bare = {task for task in self._commits if not self._commits[task].has_all(markers[str(task)])}
            items = [item for item in items if item[0] in bare]
            if items and self._resources.leaving.wait(_BASE_POLL_SECONDS):
                raise RetryableError("the container leaves the epoch")
        for task, commit in self._commits.items():
            commit.uploaded(checkpoint_id, markers[str(task)], copies[task])
        return UploadResult(markers, {wing: raw(found) for wing, found in self._wings.uploaded().items()})

    def clean_up(self, checkpoint_id: CheckpointId, markers: Markers) -> None:
        each(
            self._uploaders,
            lambda task: self._commits[task].clean_up(checkpoint_id, markers.get(str(task), {})),
            list(self._commits),
        )

    def wind_down(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for commit in self._commits.values():
            commit.finish(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop and join all background work. Afterwards the tasks may be closed."""
        self._resources.leaving.set()
        for pool in (self._copiers, self._uploaders):
            pool.shutdown(wait=True, cancel_futures=True)
        for commit in self._commits.values():
            commit.close()
        self._wings.forget()
        self._resources.stop_backends()

    def status(self) -> str:
        return self._doing
