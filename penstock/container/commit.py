"""The commits of a container: the changes of its tasks, the copies that backends ask for, and all uploads."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from penstock.base.files import explained
from penstock.base.parallel import each
from penstock.checkpoint.record import CheckpointId
from penstock.container.part import ContainerParts, CopiedStore
from penstock.container.restorer import RestoredTask, Targets, TaskMarks
from penstock.container.shared import EpochResources, Service, StoreFolders
from penstock.errors import ContainerLostError, RetryableError
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.state.backends.base import StoreCopy, TaskBackupManager
from penstock.state.engines.engine import Changes
from penstock.wire.protocol import Markers, UploadResult, raw

logger = logging.getLogger(__name__)
_CHANGED: Changes = {b"": None}
"""Any change: backends only need to know that a copied store has changed."""


class TaskCommitManager:
    """Commits one task's stores to all their backends (SEP-28's TaskStorageCommitManager).

    `snapshot` is called between two batches. Copies are made after it returned, while the task's next End waits.
    """

    def __init__(
        self,
        task: TaskInstance,
        backups: Mapping[str, tuple[TaskBackupManager, frozenset[str]]],
        folders: StoreFolders,
        marks: TaskMarks,
        targets: Targets,
        *,
        keep_copies: bool,
        metrics: MetricsRegistry,
        copied: Mapping[str, CopiedStore] | None = None,
    ) -> None:
        """`backups`: name → manager and the stores it backs up. `keep_copies`: a copy of the last checkpoint stays on
        this host. `copied`: stores that are backed up for wings, and that no checkpoint needs."""
        self._task = task
        self._marks, self._targets = marks, targets
        self._backups = dict(backups)
        self._folders = folders
        self._copied = copied or {}
        self._keep_copies = keep_copies
        self._snapshot_ns, self._upload_ns, self._clean_up_ns = (
            {name: metrics.new_timer(f"backend.{name}", timer) for name in backups}
            for timer in ("snapshot-ns", "upload-ns", "cleanup-ns")
        )
        self._wants: dict[str, frozenset[str]] = {}
        self._copies: Future[dict[str, StoreCopy]] | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(self._backups)

    @property
    def wants_commit(self) -> bool:
        """True if a backend waits for a commit although nothing may have changed."""
        return any(manager.wants_commit for manager, _ in self._backups.values())

    def snapshot(self, checkpoint_id: CheckpointId, copiers: Executor, *, last: bool) -> None:
        """Take the changes, the synchronous part of a commit; copies begin on `copiers`. `last`: no other commit is
        expected soon."""
        self._release_copies()
        changes: dict[str, Changes] = dict(self._task.take_changes(hold=True))
        try:
            self._marks.snapshot(checkpoint_id)
            changes.update({name: _CHANGED if store.take_change() else {} for name, store in self._copied.items()})
            self._wants = {
                name: frozenset(s for s in stores if manager.wants_copy(s, changed=bool(changes[s]), last=last))
                for name, (manager, stores) in self._backups.items()
            }
            copied: set[str] = set().union(*self._wants.values())
            if self._keep_copies:
                copied.update(self._folders.stores)
            for name, (manager, stores) in self._backups.items():
                with self._snapshot_ns[name].time():
                    manager.snapshot(checkpoint_id, {store: changes[store] for store in stores})
            if copied:
                self._copies = copiers.submit(self._make_copies, checkpoint_id, sorted(copied))
            else:
                self._task.release()
        except BaseException:
            self._task.release()
            raise

    def _make_copies(self, checkpoint_id: CheckpointId, stores: list[str]) -> dict[str, StoreCopy]:
        made: dict[str, StoreCopy] = {}
        try:
            for store in stores:
                directory = self._folders.making(store, self._task.task, checkpoint_id)
                shutil.rmtree(directory, ignore_errors=True)
                (self._copied.get(store) or self._task.engine(store)).copy_to(directory)
                made[store] = self._copy(store, directory)
        except Exception as error:
            self._marks.distrust()
            for copy in made.values():
                copy.release()
            raise ContainerLostError(
                f"store `{stores[len(made)]}` of task {self._task.task} could not be copied: {error}"
            ) from error
        finally:
            self._task.release()
        return made

    def _copy(self, store: str, directory: Path) -> StoreCopy:
        return StoreCopy(
            directory,
            lambda: self._folders.open(store, directory, read_only=True),
            lambda: shutil.rmtree(directory, ignore_errors=True),
        )

    def await_copies(self) -> dict[str, StoreCopy]:
        """The copies of the last snapshot. Raises ContainerLostError if one could not be made: the task is restored."""
        return {} if self._copies is None else self._copies.result()

    def upload(self, backend: str, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> dict[str, str]:
        """One backend's upload. Returns store → marker."""
        manager, _ = self._backups[backend]
        own = {store: copies[store] for store in self._wants.get(backend, ())}
        what = f"task {self._task.task} could not be uploaded to {backend}"
        try:
            with explained(what, "job.logged.store.base.dir"), self._upload_ns[backend].time():
                return dict(manager.upload(checkpoint_id, own))
        except RetryableError as error:
            if isinstance(error, ContainerLostError):
                self._marks.distrust()
            raise
        except BaseException:
            self._marks.distrust()
            raise

    def has_all(self, markers: Mapping[str, Mapping[str, str]]) -> bool:
        """True if every store has a marker of at least one backend."""
        return all(any(store in own for own in markers.values()) for store in self._folders.stores)

    def uploaded(
        self, checkpoint_id: CheckpointId, markers: Mapping[str, Mapping[str, str]], copies: Mapping[str, StoreCopy]
    ) -> None:
        """End the uploads: publish the copies that stay on this host, release the others."""
        if self._keep_copies:
            for store in self._folders.stores:
                if store in copies:
                    self._publish(store, copies[store], checkpoint_id, _of_store(store, markers))
        self._release_copies()

    def _publish(self, store: str, copy: StoreCopy, checkpoint_id: CheckpointId, markers: Mapping[str, str]) -> None:
        """Keep a copy on this host. Without it a restart takes longer, so a failure is only logged."""
        # The published folder is a second set of links: a reader of this copy keeps its links.
        linked = copy.directory.with_name(f"{copy.directory.name}-link")
        try:
            shutil.rmtree(linked, ignore_errors=True)
            shutil.copytree(copy.directory, linked, copy_function=_link)
            self._folders.copies(store, self._task.task).publish(checkpoint_id, markers, linked)
        except OSError as error:
            shutil.rmtree(linked, ignore_errors=True)
            logger.warning(
                "no local copy of store `%s` of task %d is kept on this host: %s", store, self._task.task, error
            )

    def clean_up(self, checkpoint_id: CheckpointId, markers: Mapping[str, Mapping[str, str]]) -> None:
        self._marks.committed(checkpoint_id, markers, self._targets)
        for name, (manager, _) in self._backups.items():
            with self._clean_up_ns[name].time():
                manager.clean_up(checkpoint_id, markers.get(name, {}))
        if self._keep_copies:
            for store in self._folders.stores:
                self._folders.copies(store, self._task.task).keep_only(checkpoint_id)

    def finish(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for manager, _ in self._backups.values():
            manager.finish(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Stop the backends' background work, and forget the copies. A failure of one does not keep the others."""
        for name, (manager, _) in self._backups.items():
            try:
                manager.close()
            except Exception:
                logger.exception("closing backend %s of task %d failed", name, self._task.task)
        self._release_copies()

    def _release_copies(self) -> None:
        future, self._copies = self._copies, None
        if future is not None and not future.cancelled() and future.exception() is None:
            for copy in future.result().values():
                copy.release()


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _of_store(store: str, markers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {backend: own[store] for backend, own in markers.items() if store in own}


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
