"""The stores of a container's tasks: how they are restored and committed."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.checkpoint.id import CheckpointId
from penstock.container.commit import TaskCommitManager
from penstock.container.protocol import OpenCall
from penstock.container.store_folders import StoreFolders, stores_directory
from penstock.errors import CorruptError, NotFoundError, PenstockError, RetryableError
from penstock.metadata.identity import known_uid
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.runtime.task_instance import TaskInstance
from penstock.state.backends.base import BackendContext, RestoreProgress, TaskBackupManager
from penstock.state.backends.pools import BackendPools
from penstock.state.backends.registry import backend_factory
from penstock.state.backends.roots import BackendRoots
from penstock.state.engines.engine import Engine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.engines.write_behind import WriteBehindEngine
from penstock.state.restore import Restored, Tried, restore_order, restore_store

if TYPE_CHECKING:
    from penstock.container.container import JobPackage

logger = logging.getLogger(__name__)
_MAX_POOL = 64
_COPIERS = 2
_WRITERS = 2
_BASE_POLL_SECONDS = 0.2
_A = TypeVar("_A")
_B = TypeVar("_B")


class ContainerStorage:
    """Stores and commits of one container in one epoch."""

    def __init__(self, package: JobPackage, container: str, epoch: int, tasks: int) -> None:
        """`tasks`: how many of the job's tasks it will hold."""
        self._package = package
        self._epoch = epoch
        config = package.config
        self._paths = JobPaths(config.job.name, config.job.id)
        self._objects = open_store(config.job.root)
        self._roots = BackendRoots(config, self._objects)
        self._stores = tuple(spec.name for spec in package.topology.graph.stores)
        base = stores_directory(config, package.job_uid)
        self._folders = StoreFolders(config, self._stores, base, container, epoch)
        self._commits: dict[int, TaskCommitManager] = {}
        self._tasks: dict[int, TaskInstance] = {}
        self._failed: list[str] = []
        self._stopping = threading.Event()
        self._restorers = self._pool("restore", tasks, config.container.restore_thread_pool_size)
        self._committers = self._pool("commit", tasks, config.container.commit_thread_pool_size)
        self._copiers = ThreadPoolExecutor(_COPIERS, thread_name_prefix=f"copy-{epoch}")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix=f"write-{epoch}")
        self._pools = BackendPools.for_tasks(tasks, str(epoch))

    def _pool(self, name: str, tasks: int, least: int) -> ThreadPoolExecutor:
        size = min(max(2 * tasks, least), _MAX_POOL)
        return ThreadPoolExecutor(size, thread_name_prefix=f"{name}-{self._epoch}")

    def check_root(self) -> None:
        """Raise NotFoundError unless this host reads what the driver has written under job.root, and under the roots of
        backends."""
        try:
            self._objects.get(self._package.probe)
        except NotFoundError as error:
            raise NotFoundError(
                f"what the driver wrote under job.root `{self._package.config.job.root}` is not there on host "
                f"`{socket.gethostname()}`: a job root must be shared by all hosts, for example an object store"
            ) from error
        for url, objects in self._roots.separate():
            if known_uid(objects, self._paths) != self._package.job_uid:
                raise NotFoundError(
                    f"what the driver wrote under {url} (state.backends.<name>.root) is not there on host "
                    f"`{socket.gethostname()}`: a root must be shared by all hosts, for example an object store"
                )

    # Restore.

    def restore(
        self, call: OpenCall, cancelled: threading.Event, report: Callable[[int], None]
    ) -> dict[int, TaskInstance]:
        """Open and fill every store of the tasks, in parallel. The first error is raised once all have stopped."""
        progress = RestoreProgress(cancelled, report, self._failed.append)

        def one(task: int) -> None:
            self._restore_task(task, call, progress)

        try:
            _each(self._restorers, one, call.tasks, on_error=cancelled.set)
            self._restorers.shutdown()
        except BaseException:
            self.stop()
            for instance in self._tasks.values():
                instance.close()
            self.close()
            raise
        return dict(self._tasks)

    @property
    def failed_restores(self) -> tuple[str, ...]:
        """What to tell of restores that went wrong on the way, though they went well in the end."""
        return tuple(self._failed)

    def _restore_task(self, task: int, call: OpenCall, progress: RestoreProgress) -> None:
        markers = (call.markers or {}).get(str(task), {})
        checkpoint_id = None if call.checkpoint_id is None else CheckpointId.parse(call.checkpoint_id)
        engines: dict[str, Engine] = {}
        failed: set[tuple[str, str]] = set()
        backups: dict[str, tuple[TaskBackupManager, frozenset[str]]] = {}
        try:
            for store in self._stores:
                engines[store], tried = self._open_store(task, store, call, markers, checkpoint_id, progress)
                failed.update((each.backend, store) for each in tried)
            # What could not be restored from cannot be continued from: that backend begins with a base.
            usable = {
                name: {store: marker for store, marker in own.items() if (name, store) not in failed}
                for name, own in markers.items()
            }
            backups = self._open_backups(task, checkpoint_id, usable)
        except BaseException:
            for engine in engines.values():
                engine.close()
            raise
        behind = {store: self._behind(store, engine) for store, engine in engines.items()}
        instance = TaskInstance(task, self._package.topology, self._package.settings, behind, call.last_ended)
        self._tasks[task] = instance
        affinity = self._package.config.job.host_affinity_enabled
        self._commits[task] = TaskCommitManager(instance, backups, self._folders, keep_copies=affinity)

    def _behind(self, store: str, engine: Engine) -> Engine:
        """Writing a batch to RocksDB takes longer than what an End may wait for; a map in memory is written at once."""
        if not isinstance(engine, RocksDbEngine):
            return engine
        gather = self._package.config.store(store).rocksdb_write_buffer_bytes
        return WriteBehindEngine(engine, self._writers, gather)

    def _open_store(
        self,
        task: int,
        store: str,
        call: OpenCall,
        markers: Mapping[str, Mapping[str, str]],
        checkpoint_id: CheckpointId | None,
        progress: RestoreProgress,
    ) -> tuple[Engine, tuple[Tried, ...]]:
        live = self._folders.live(store, task)
        shutil.rmtree(live, ignore_errors=True)
        if store not in call.covered or checkpoint_id is None:
            self._folders.copies(store, task).keep_only(None)
            return self._folders.open(store, live), ()
        copied = self._open_copy(store, task, checkpoint_id, live)
        if copied is not None:
            return copied, ()
        restored = restore_store(
            lambda name: self._context(name, task, (store,)),
            task,
            store,
            restore_order(store, self._package.config.store(store).restore_factories, markers),
            markers,
            live,
            lambda directory: self._folders.open_restored(store, directory),
            progress,
        )
        self._failed.extend(_fallbacks(store, task, checkpoint_id, restored))
        return restored.engine, restored.failed

    def _open_copy(self, store: str, task: int, checkpoint_id: CheckpointId, live: Path) -> Engine | None:
        """The store over the copy on this host, if there is one of exactly this checkpoint that can be used."""
        if not self._package.config.job.host_affinity_enabled:
            return None
        try:
            if not self._folders.copies(store, task).take(checkpoint_id, live):
                return None
            return self._folders.open(store, live)
        except (CorruptError, RetryableError) as error:
            logger.warning("the local copy is not used: %s", error)
        except OSError as error:
            logger.warning("the local copy of store `%s` of task %d is not used: %s", store, task, error)
        shutil.rmtree(live, ignore_errors=True)
        return None

    def _open_backups(
        self, task: int, checkpoint_id: CheckpointId | None, markers: Mapping[str, Mapping[str, str]]
    ) -> dict[str, tuple[TaskBackupManager, frozenset[str]]]:
        """Managers of every backend, continued from the checkpoint."""
        stores_of: dict[str, list[str]] = {}
        for store in self._stores:
            for name in self._package.config.store(store).backup_factories:
                stores_of.setdefault(name, []).append(store)
        opened: dict[str, tuple[TaskBackupManager, frozenset[str]]] = {}
        try:
            for name, stores in stores_of.items():
                manager = backend_factory(name).backup_manager(self._context(name, task, tuple(stores)))
                opened[name] = (manager, frozenset(stores))
                own = {store: marker for store, marker in markers.get(name, {}).items() if store in stores}
                manager.init(checkpoint_id, own)
                if checkpoint_id is not None:
                    _clean_up(manager, checkpoint_id, own, f"backend {name} of task {task}")
        except BaseException:
            for manager, _ in opened.values():
                manager.close()
            raise
        return opened

    def _context(self, backend: str, task: int, stores: tuple[str, ...]) -> BackendContext:
        return BackendContext(
            self._roots.of(backend),
            self._paths,
            task,
            stores,
            self._epoch,
            self._package.config,
            self._package.systems,
            self._pools,
            self._stopping,
        )

    # Commit.

    def snapshot(self, checkpoint_id: CheckpointId, *, last: bool) -> None:
        """The synchronous part of a commit, for every task. `last`: the run is to end with it."""
        for commit in self._commits.values():
            commit.snapshot(checkpoint_id, self._copiers, last=last)

    def upload(self, checkpoint_id: CheckpointId) -> dict[str, dict[str, dict[str, str]]]:
        """The part of a commit that runs in the background: all tasks and backends in parallel. May be called again
        after a RetryableError."""
        copies = {task: commit.await_copies() for task, commit in self._commits.items()}
        items = [(task, backend) for task, commit in self._commits.items() for backend in commit.backends]
        markers: dict[str, dict[str, dict[str, str]]] = {str(task): {} for task in self._commits}
        while items:
            found = _each(
                self._committers,
                lambda item: self._commits[item[0]].upload(item[1], checkpoint_id, copies[item[0]]),
                items,
            )
            for (task, backend), own in zip(items, found, strict=True):
                markers[str(task)][backend] = own
            # A checkpoint without any marker of a store could not be restored: it waits for a base.
            bare = {task for task in self._commits if not self._commits[task].has_all(markers[str(task)])}
            items = [item for item in items if item[0] in bare]
            if items and self._stopping.wait(_BASE_POLL_SECONDS):
                raise RetryableError("the container leaves the epoch")
        for task, commit in self._commits.items():
            commit.uploaded(checkpoint_id, copies[task])
        return markers

    def clean_up(self, checkpoint_id: CheckpointId, markers: Mapping[str, Mapping[str, Mapping[str, str]]]) -> None:
        """The checkpoint is in the log."""
        _each(
            self._committers,
            lambda task: self._commits[task].clean_up(checkpoint_id, markers.get(str(task), {})),
            list(self._commits),
        )

    # The end.

    def finish(self, timeout_s: float) -> None:
        """The run has ended well: give what backends do in the background the time to end."""
        deadline = time.monotonic() + timeout_s
        for commit in self._commits.values():
            commit.finish(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop and join what runs in the background. The tasks may be closed then."""
        self._stopping.set()
        for pool in (self._restorers, self._copiers, self._committers):
            pool.shutdown(wait=True, cancel_futures=True)
        for commit in self._commits.values():
            commit.close()
        self._pools.close()

    def close(self) -> None:
        """Remove the working copies; they are never read again."""
        for task in self._tasks:
            for store in self._stores:
                self._folders.remove_live(store, task)
        self._writers.shutdown()
        self._roots.close()
        self._objects.close()


def _fallbacks(store: str, task: int, checkpoint_id: CheckpointId, restored: Restored) -> list[str]:
    """Why a store was not restored from the backend that is preferred."""
    notes = [f"{tried}; {restored.backend} was used instead" for tried in restored.failed]
    if restored.without_marker:
        notes.append(
            f"store `{store}` of task {task} could not be restored from {', '.join(restored.without_marker)}: "
            f"checkpoint {checkpoint_id} has no marker of it from there; {restored.backend} was used instead"
        )
    return notes


def _clean_up(manager: TaskBackupManager, checkpoint_id: CheckpointId, markers: Mapping[str, str], whose: str) -> None:
    """After `init`. What fails here costs space, no state: the next commit does it again."""
    try:
        manager.clean_up(checkpoint_id, markers)
    except PenstockError as error:
        logger.warning("cleaning up in %s failed, the next commit tries again: %s", whose, error)


def _each(
    pool: ThreadPoolExecutor, work: Callable[[_A], _B], items: list[_A], on_error: Callable[[], None] = lambda: None
) -> list[_B]:
    """Do the work for every item on the pool; waits for all, then raises the first error if there is one, those that
    cannot pass first."""
    errors: list[BaseException] = []

    def one(item: _A) -> _B:
        try:
            return work(item)
        except BaseException as error:
            errors.append(error)  # before the others are cancelled, so that the cause comes first
            on_error()
            raise

    futures: list[Future[_B]] = [pool.submit(one, item) for item in items]
    for future in futures:
        try:
            future.exception()  # unlike `wait`, it notices a future that the pool's shutdown has cancelled
        except CancelledError:
            errors.append(RetryableError("the container leaves the epoch"))
    if errors:
        errors.sort(key=lambda error: isinstance(error, RetryableError))
        for error in errors[1:]:
            logger.error("also failed: %s", error)
        raise errors[0]
    return [future.result() for future in futures]
