"""The stores of a container's tasks: where they lie, how they are restored and committed."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.checkpoint.id import CheckpointId
from penstock.container.protocol import OpenCall
from penstock.errors import CorruptError, NotFoundError
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.runtime.task_instance import TaskInstance
from penstock.state.backends.base import BackendContext, RestoreProgress, TaskBackupManager
from penstock.state.backends.registry import backend_factory
from penstock.state.engine import Engine, RocksDbEngine

if TYPE_CHECKING:
    from penstock.container.container import JobPackage

logger = logging.getLogger(__name__)
_MAX_POOL = 64
_A = TypeVar("_A")
_B = TypeVar("_B")


class ContainerStorage:
    """Stores and backup managers of one container in one epoch."""

    def __init__(self, package: JobPackage, container: str, epoch: int) -> None:
        self._package = package
        self._container = container
        self._epoch = epoch
        config = package.config
        self._paths = JobPaths(config.job.name, config.job.id)
        self._objects = open_store(config.job.root)
        self._base = Path(config.job.logged_store_base_dir) / f"{self._paths.root}-{package.job_uid}"
        self._stores = tuple(spec.name for spec in package.topology.graph.stores)
        self._backups: dict[int, dict[str, TaskBackupManager]] = {}
        self._tasks: dict[int, TaskInstance] = {}
        self._pool = ThreadPoolExecutor(
            min(max(2 * package.settings.tasks, config.container.commit_thread_pool_size), _MAX_POOL),
            thread_name_prefix=f"storage-{epoch}",
        )

    def check_root(self) -> None:
        """Raise NotFoundError unless this host reads what the driver has just written under job.root."""
        try:
            self._objects.get(self._package.probe)
        except NotFoundError as error:
            raise NotFoundError(
                f"what the driver wrote under job.root `{self._package.config.job.root}` is not there on host "
                f"`{socket.gethostname()}`: a job root must be shared by all hosts, for example an object store"
            ) from error

    def restore(
        self, call: OpenCall, cancelled: threading.Event, report: Callable[[int], None]
    ) -> dict[int, TaskInstance]:
        """Open and fill every store of the tasks, in parallel. The first error is raised once all have stopped."""
        progress = RestoreProgress(cancelled, report)

        def one(task: int) -> None:
            self._tasks[task] = self._restore_task(task, call, progress)

        try:
            self._each(one, call.tasks, on_error=cancelled.set)
        except BaseException:
            for instance in self._tasks.values():
                instance.close()
            self.close()
            raise
        return dict(self._tasks)

    def snapshot(self, checkpoint_id: CheckpointId) -> None:
        """The synchronous part of a commit, for every task."""
        for task, instance in self._tasks.items():
            changes = instance.take_changes()
            for backup in self._backups[task].values():
                backup.snapshot(checkpoint_id, changes)

    def upload(self, checkpoint_id: CheckpointId) -> dict[str, dict[str, dict[str, str]]]:
        """The part of a commit that may run in the background, for every task, in parallel."""

        def one(task: int) -> dict[str, dict[str, str]]:
            return {name: dict(backup.upload(checkpoint_id)) for name, backup in self._backups[task].items()}

        tasks = list(self._tasks)
        return {str(task): result for task, result in zip(tasks, self._each(one, tasks), strict=True)}

    def close(self) -> None:
        """Close the backups and remove the local directories; they are never read again."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for backups in self._backups.values():
            for backup in backups.values():
                backup.close()
        for task in self._tasks:
            for store in self._stores:
                shutil.rmtree(self._live(store, task), ignore_errors=True)
        self._objects.close()

    def _restore_task(self, task: int, call: OpenCall, progress: RestoreProgress) -> TaskInstance:
        markers = (call.markers or {}).get(str(task), {})
        context = BackendContext(self._objects, self._paths, task, self._stores, self._epoch)
        engines: dict[str, Engine] = {}
        try:
            for store in self._stores:
                engines[store] = self._open_engine(store, task)
                if store in call.covered:
                    self._restore_store(context, store, markers, engines[store], progress)
            self._backups[task] = self._open_backups(context, markers)
        except BaseException:
            for engine in engines.values():
                engine.close()
            raise
        return TaskInstance(task, self._package.topology, self._package.settings, engines, call.last_ended)

    def _restore_store(
        self,
        context: BackendContext,
        store: str,
        markers: Mapping[str, Mapping[str, str]],
        engine: Engine,
        progress: RestoreProgress,
    ) -> None:
        wanted = self._package.config.store(store).restore_factories
        name = next((f for f in wanted if store in markers.get(f, {})), None)
        if name is None:
            has = ", ".join(f for f, stores in markers.items() if store in stores) or "none"
            raise CorruptError(
                f"the checkpoint has no marker for store `{store}` of task {context.task} from {', '.join(wanted)}; "
                f"it has one from: {has}. Set stores.{store}.restore.factories to one that has"
            )
        manager = backend_factory(name).restore_manager(context)
        try:
            manager.restore(markers[name][store], store, engine, progress)
        finally:
            manager.close()

    def _open_backups(
        self, context: BackendContext, markers: Mapping[str, Mapping[str, str]]
    ) -> dict[str, TaskBackupManager]:
        backups: dict[str, TaskBackupManager] = {}
        names = {f: None for store in self._stores for f in self._package.config.store(store).backup_factories}
        for name in names:
            backups[name] = backend_factory(name).backup_manager(context)
            backups[name].init(markers.get(name, {}))
        return backups

    def _open_engine(self, store: str, task: int) -> Engine:
        self._clear_older(store, task)
        settings = self._package.config.store(store)
        return RocksDbEngine(
            self._live(store, task),
            block_cache_bytes=settings.rocksdb_block_cache_bytes,
            write_buffer_bytes=settings.rocksdb_write_buffer_bytes,
        )

    def _live(self, store: str, task: int) -> Path:
        return self._base / store / str(task) / f"live-{self._epoch}-{self._container}"

    def _clear_older(self, store: str, task: int) -> None:
        """Remove live directories of older epochs: whoever still has one open is fenced."""
        folder = self._base / store / str(task)
        for path in folder.glob("live-*"):
            epoch = path.name.split("-")[1]
            if epoch.isdigit() and int(epoch) < self._epoch:
                shutil.rmtree(path, ignore_errors=True)

    def _each(self, work: Callable[[_A], _B], items: list[_A], on_error: Callable[[], None] = lambda: None) -> list[_B]:
        """Do the work for every item on the pool; waits for all, then raises the first error if there is one."""
        errors: list[BaseException] = []

        def one(item: _A) -> _B:
            try:
                return work(item)
            except BaseException as error:
                errors.append(error)  # before the others are cancelled, so that the cause comes first
                on_error()
                raise

        futures: list[Future[_B]] = [self._pool.submit(one, item) for item in items]
        wait(futures)
        if errors:
            for error in errors[1:]:
                logger.error("also failed: %s", error)
            raise errors[0]
        return [future.result() for future in futures]
