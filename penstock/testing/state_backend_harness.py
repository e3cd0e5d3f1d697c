"""The calls of driver and container to a state backend, in one thread, for tests of backends."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.checkpoint.record import CheckpointId
from penstock.config import load_config
from penstock.config.settings import StoreSettings
from penstock.errors import CorruptError, NotFoundError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.job.paths import JobPaths
from penstock.metrics.registry import MetricsRegistry
from penstock.objects.forwarding import MeteredObjectStore
from penstock.objects.store import ObjectStore
from penstock.state.backends import base
from penstock.state.engines.engine import Changes, Engine
from penstock.state.engines.open import open_engine, open_restored
from penstock.system.base import System

STORES = ("first", "second")
T = TypeVar("T")
Content: TypeAlias = dict[bytes, bytes]
EngineName: TypeAlias = Literal["rocksdb", "memory"]

_MAX_TRIES = 1000
_TIMEOUT_S = 60.0
_POLL_S = 0.05


class BackendHarness:
    """One job with the stores `STORES`: several tasks and epochs, each with separate engines.

    `objects` may be replaced while tasks are open: contexts made from then on have the new one.
    """

    def __init__(
        self,
        factory: base.StateBackendFactory,
        objects: ObjectStore,
        directory: Path,
        engine: EngineName = "rocksdb",
        systems: Mapping[str, System] | None = None,
        overrides: Mapping[str, object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`overrides`: keys of the job's configuration besides its name. `clock`: the backend's."""
        self.factory = factory
        self.objects = objects
        self.systems = dict(systems or {})
        given = {"job.name": "contract", "job.id": "1", **(overrides or {})}
        self.config = load_config(overrides=given, environ={})
        self.paths = JobPaths("contract", "1")
        self.copies: set[Path] = set()
        """The copies that are still in use."""
        self.metrics = MetricsRegistry("Partition 0")
        """Shared by all contexts."""
        self._clock = clock
        self._damaged: set[str] = set()
        self._directory = directory
        self._settings = (
            self.config.store("first")
            .put(StoreSettings.factory, engine)
            .put(StoreSettings.rocksdb_block_cache_bytes, 1 << 20)
            .put(StoreSettings.rocksdb_write_buffer_bytes, 1 << 16)
        )
        self._folders = 0
        self._last_id = CheckpointId(1_700_000_000_000, 0)
        self._epoch = 0
        self._open: list[TaskBackup] = []

    def context(self, epoch: int, task: int = 0) -> base.BackendContext:
        """The context of a backend."""
        metered = MeteredObjectStore(self.objects, self.metrics, f"backend.{self.factory.name}")
        return base.BackendContext(
            metered,
            self.paths,
            task,
            STORES,
            epoch,
            self.config,
            self.systems,
            metrics=self.metrics,
            clock=self._clock,
            damaged=self._damaged,
            container="contract",
            partitions=(SystemStreamPartition("memory", "in", task),),
            uid="uid",
        )

    def admin_context(self) -> base.AdminContext:
        """The context of a backend's admin."""
        return base.AdminContext(self.objects, self.paths, 12, STORES, self.config, self.systems, "uid")

    def backup(
        self,
        epoch: int,
        markers: Mapping[str, str] | None = None,
        task: int = 0,
        *,
        content: Mapping[str, Content] | None = None,
    ) -> TaskBackup:
        """Open a task as a container does.

        Without markers and content it is new. Otherwise it continues from a checkpoint with these markers of the
        backend; a store in `content` was restored by somebody else, any other one is restored by the backend.
        """
        self._create_resources(epoch)
        backup = TaskBackup(self, epoch, task, content or {}, markers)
        self._open.append(backup)
        return backup

    def restore(self, marker: str, store: str = "first", *, epoch: int = 99, task: int = 0) -> Content:
        """The content of a store at a marker."""
        progress = base.RestoreProgress(threading.Event(), lambda _: None)
        with closing(self.restore_engine(marker, store, progress, epoch=epoch, task=task)) as engine:
            return dict(engine.scan(None, None))

    def restore_engine(
        self, marker: str, store: str, progress: base.RestoreProgress, *, epoch: int = 99, task: int = 0
    ) -> Engine:
        """Restore a store into a separate folder. Returns the open engine."""
        directory = self.new_folder()
        opened: list[Engine] = []

        def engine() -> Engine:
            if not opened:
                opened.append(self.open_engine(directory))
            return opened[0]

        manager = self.factory.restore_manager(self.context(epoch, task))
        try:
            manager.restore(store, marker, base.RestoreTarget(directory, engine), progress)
        except BaseException:
            for each in opened:
                each.close()
            raise
        finally:
            manager.close()
        return engine()

    def collect(
        self,
        retained: Sequence[Mapping[str, str]],
        left: Sequence[Mapping[str, str]],
        *,
        epoch: int,
        sweep: bool = False,
        dry_run: bool = False,
    ) -> base.Garbage:
        """Let a new admin collect; the markers are those of task 0."""
        retention = base.Retention(epoch, _of_task_0(retained), _of_task_0(left), sweep)
        with closing(self.factory.admin(self.admin_context())) as admin:
            return admin.collect(retention, dry_run=dry_run)

    def close(self) -> None:
        """Close every task that is still open."""
        for backup in self._open:
            backup.close()

    def next_id(self) -> CheckpointId:
        """The id of the next checkpoint."""
        self._last_id = CheckpointId(self._last_id.millis + 1, 0)
        return self._last_id

    def last_id(self) -> CheckpointId:
        """The id of the last one."""
        return self._last_id

    def new_folder(self) -> Path:
        """An empty folder."""
        self._folders += 1
        folder = self._directory / str(self._folders)
        folder.mkdir(parents=True)
        return folder

    def open_engine(self, directory: Path, *, read_only: bool = False) -> Engine:
        """The engine over the files of a folder, whatever kind of engine wrote them."""
        if read_only:
            return open_engine(self._settings, directory, read_only=True)
        return open_restored(self._settings, directory)

    def copy(self, engine: Engine) -> base.StoreCopy:
        """A copy of the engine's present content."""
        directory = self.new_folder() / "copy"
        engine.copy_to(directory)
        self.copies.add(directory)

        def remove() -> None:
            shutil.rmtree(directory)
            self.copies.remove(directory)

        return base.StoreCopy(directory, lambda: self.open_engine(directory, read_only=True), remove)

    def _create_resources(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            with closing(self.factory.admin(self.admin_context())) as admin:
                admin.create_resources(epoch)
                admin.validate_resources()


class TaskBackup:
    """A task in its container: an engine for each store, and a backup manager."""

    def __init__(
        self,
        harness: BackendHarness,
        epoch: int,
        task: int,
        content: Mapping[str, Content],
        markers: Mapping[str, str] | None,
    ) -> None:
        self._harness = harness
        self._closed = False
        checkpoint_id = harness.last_id() if markers is not None or content else None
        progress = base.RestoreProgress(threading.Event(), lambda _: None)
        context = harness.context(epoch, task)
        self.leaving = context.leaving
        """Set it as a container does when it leaves the epoch."""
        self.manager = harness.factory.backup_manager(context)
        self.engines: dict[str, Engine] = {}
        for store in STORES:
            if store in content or store not in (markers or {}):
                self.engines[store] = harness.open_engine(harness.new_folder())
                self.engines[store].apply(content.get(store, {}))
            else:
                marker = (markers or {})[store]
                self.engines[store] = harness.restore_engine(marker, store, progress, epoch=epoch, task=task)
        self.manager.init(checkpoint_id, markers or {})
        if checkpoint_id is not None:
            self.manager.clean_up(checkpoint_id, markers or {})

    def content(self, store: str = "first") -> Content:
        """The present content of a store."""
        return dict(self.engines[store].scan(None, None))

    def commit(self, **changes: Changes) -> dict[str, str]:
        """Make the changes, then commit them. Returns store → marker."""
        return self.commit_changes(changes)

    def commit_changes(
        self,
        changes: Mapping[str, Changes],
        *,
        retry: bool = False,
        complete: bool = False,
        clean_up: bool = True,
        last: bool = False,
    ) -> dict[str, str]:
        """As `commit`, with a choice of steps.

        `retry`: repeat the upload after each RetryableError, as a container does. `complete`: ask again until every
        store has a marker. `clean_up`: False if the checkpoint does not get into the log. `last`: the run is about to
        end.
        """
        for store, changed in changes.items():
            self.engines[store].apply(changed)
        checkpoint_id = self._harness.next_id()
        wanted = [s for s in STORES if self.manager.wants_copy(s, changed=bool(changes.get(s)), last=last)]
        self.manager.snapshot(checkpoint_id, {store: changes.get(store, {}) for store in STORES})
        copies = {store: self._harness.copy(self.engines[store]) for store in wanted}
        try:
            markers = self._upload(checkpoint_id, copies, _MAX_TRIES if retry else 1)
            deadline = time.monotonic() + _TIMEOUT_S
            while complete and markers.keys() != set(STORES):
                if time.monotonic() > deadline:
                    raise PenstockTimeoutError(f"after {_TIMEOUT_S} s only {list(markers)} have markers")
                time.sleep(_POLL_S)
                again = self._upload(checkpoint_id, copies, _MAX_TRIES)
                if not markers.items() <= again.items():
                    raise PenstockError(f"asked again for checkpoint {checkpoint_id}, {markers} became {again}")
                markers = again
        finally:
            for copy in copies.values():
                copy.release()
        if clean_up:
            self.manager.clean_up(checkpoint_id, markers)
        return markers

    def finish(self) -> None:
        """Wait for the manager's background work."""
        self.manager.finish(_TIMEOUT_S)

    def close(self) -> None:
        """Close the manager and the engines; once."""
        if not self._closed:
            self._closed = True
            self.manager.close()
            for engine in self.engines.values():
                engine.close()

    def _upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, base.StoreCopy], tries: int) -> dict[str, str]:
        for number in range(1, tries + 1):
            try:
                return dict(self.manager.upload(checkpoint_id, copies))
            except RetryableError:
                if number == tries:
                    raise
        raise PenstockError("no upload was tried")


class StandbyOf:
    """A copy of a store of task 0 that follows markers, as a standby does."""

    def __init__(self, harness: BackendHarness, store: str) -> None:
        self._harness = harness
        self._store = store
        self._marker: str | None = None
        self._engine: Engine | None = None
        self._directory = harness.new_folder()

    def follow(self, marker: str, epoch: int = 99) -> bool:
        """Bring it to a marker. Returns True if a step was enough; otherwise it was restored whole.

        Args:
            marker: the marker.
            epoch: the epoch that the managers are of.
        """
        held = self._marker
        if held is not None:
            with suppress(CorruptError, NotFoundError):
                step = self._call(lambda manager: manager.advance(self._store, held, marker, *self._place()), epoch)
                if step:
                    self._marker = marker
                    return True
        self.close()
        self._directory, self._engine = self._harness.new_folder(), None
        self._call(lambda manager: manager.restore(self._store, marker, *self._place()), epoch)
        self._marker = marker
        return False

    def content(self) -> Content:
        """Its content. Over files that no engine has opened, none is opened now."""
        if self._engine is not None:
            return dict(self._engine.scan(None, None))
        folder = self._harness.new_folder() / "looked-at"
        shutil.copytree(self._directory, folder)
        with closing(self._harness.open_engine(folder)) as engine:
            return dict(engine.scan(None, None))

    def close(self) -> None:
        """Close its engine, if it is open."""
        if self._engine is not None:
            self._engine.close()

    def _place(self) -> tuple[base.RestoreTarget, base.RestoreProgress]:
        target = base.RestoreTarget(self._directory, self._opened)
        return target, base.RestoreProgress(threading.Event(), lambda _: None)

    def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = self._harness.open_engine(self._directory)
        return self._engine

    def _call(self, call: Callable[[base.TaskRestoreManager], T], epoch: int) -> T:
        manager = self._harness.factory.restore_manager(self._harness.context(epoch))
        try:
            return call(manager)
        finally:
            manager.close()


def _of_task_0(checkpoints: Sequence[Mapping[str, str]]) -> tuple[base.StoreMarker, ...]:
    return tuple(base.StoreMarker(store, 0, marker) for markers in checkpoints for store, marker in markers.items())
