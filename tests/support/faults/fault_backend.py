"""State backends as a user would bring them: each wraps one of Penstock's and meets faults at named points.

`tests.support.faults.fault_backend:FaultyFiles` and so on. The points of a task's backup, in a container:

    init, snapshot.begin, snapshot.end, upload.begin, upload.middle, upload.end, clean_up.begin, clean_up.end
    put.begin     before anything is written, by an upload or by a base in the background
    copy.begin    before an engine is copied
    restore.begin
    snapshot.file, snapshot.zip, snapshot.done
                  before a shared file of a snapshot of changelog files, before its own file, and after that

In the driver, `collect.delete` is before each deletion.

`upload.middle` is after the first thing that an upload has written, and is not reached if it writes nothing.

What a wrapped backend writes lies under another job name, so that it and the one it wraps may be used side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.record import CheckpointId
from penstock.container import container
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import (
    AdminContext,
    BackendContext,
    RestoreProgress,
    RestoreTarget,
    StateBackendAdmin,
    StateBackendFactory,
    StoreCopy,
    TaskBackupManager,
    TaskRestoreManager,
)
from penstock.state.backends.changelog_files.factory import ChangelogFilesFactory
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.engine import Changes
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.system.base import (
    Appended,
    MarkedAtCommit,
    Progress,
    RawRecord,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
)
from penstock.testing.faulty_store import ForwardingStore
from tests.support.faults.plan import Faults

Hook = Callable[[str], None]
"""Called with what is written: a key, or a stream's partition."""


class FaultyFactory(StateBackendFactory):
    """Wraps the backend `inner`."""

    inner: ClassVar[str]
    label: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{type(self).__module__}:{type(self).__name__}"

    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        points = Points(context, self.label)
        _watch_copies(points.faults)
        store = HookedStore(context.objects, points.writing, points.written)
        systems = {name: HookedSystem(each, points.writing, points.written) for name, each in context.systems.items()}
        own = replace(context, objects=store, systems=systems, paths=self._paths(context.paths))
        return FaultyBackup(self.wrapped().backup_manager(own), points)

    def wrapped(self) -> StateBackendFactory:
        return backend_factory(self.inner)

    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        own = replace(context, paths=self._paths(context.paths))
        return FaultyRestore(self.wrapped().restore_manager(own), Points(context, self.label))

    def admin(self, context: AdminContext) -> StateBackendAdmin:
        faults = Faults.of_root(context.config.job.root)

        def deleting(_key: str) -> None:
            faults.at("collect.delete", backend=self.label)

        store = HookedStore(context.objects, _nothing, _nothing, deleting)
        return self.wrapped().admin(replace(context, objects=store, paths=self._paths(context.paths)))

    def _paths(self, paths: JobPaths) -> JobPaths:
        return JobPaths(f"{paths.name}.{self.label}", paths.job_id)


class FaultyFiles(FaultyFactory):
    """`changelog-files`, whose snapshots share every file."""

    inner = "changelog-files"
    label = "files"

    def wrapped(self) -> StateBackendFactory:
        return ChangelogFilesFactory(small_file_bytes=0)


class SecondFiles(FaultyFactory):
    """`changelog-files` once more."""

    inner = "changelog-files"
    label = "second"


class FaultyBlob(FaultyFactory):
    """`blob`."""

    inner = "blob"
    label = "blob"


class BriefHolds(FaultyBlob):
    """`blob`, which has every changed store copied, in containers where an End waits only briefly for copies before it
    asks the driver to try again."""

    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        setattr(container, "HOLD_SECONDS", 0.3)  # noqa: B010 - mypy: it is a name that the module imports
        return super().backup_manager(context)


class FaultyStream(FaultyFactory):
    """`changelog-stream`."""

    inner = "changelog-stream"
    label = "stream"


class Points:
    """The points of one task's manager."""

    def __init__(self, context: BackendContext, label: str) -> None:
        self.faults = Faults.of_root(context.config.job.root)
        self._task = context.task
        self._label = label
        self._lock = threading.Lock()
        self._uploading: str | None = None

    def at(self, point: str, checkpoint: str | None = None) -> None:
        """The manager is there."""
        self.faults.at(point, backend=self._label, task=self._task, checkpoint=checkpoint)

    def upload(self, checkpoint: str | None) -> None:
        """An upload begins, or with None has ended."""
        with self._lock:
            self._uploading = checkpoint

    def writing(self, key: str) -> None:
        """The wrapped backend is about to write something."""
        self.at("put.begin")
        if _is_of_snapshot(key):
            self.at("snapshot.zip" if key.endswith(".zip") else "snapshot.file")

    def written(self, key: str) -> None:
        """It has."""
        if _is_of_snapshot(key):
            if key.endswith(".zip"):
                self.at("snapshot.done")
            return
        with self._lock:
            checkpoint, self._uploading = self._uploading, None
        if checkpoint is not None:
            self.at("upload.middle", checkpoint)


class FaultyBackup(TaskBackupManager):
    """A backup manager with faults around its calls."""

    def __init__(self, inner: TaskBackupManager, points: Points) -> None:
        self._inner = inner
        self._points = points

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        self._points.at("init", str(checkpoint_id))
        self._inner.init(checkpoint_id, markers)

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        return self._inner.wants_copy(store, changed=changed, last=last)

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        self._points.at("snapshot.begin", str(checkpoint_id))
        self._inner.snapshot(checkpoint_id, changes)
        self._points.at("snapshot.end", str(checkpoint_id))

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        self._points.at("upload.begin", str(checkpoint_id))
        self._points.upload(str(checkpoint_id))
        try:
            markers = self._inner.upload(checkpoint_id, copies)
        finally:
            self._points.upload(None)
        self._points.at("upload.end", str(checkpoint_id))
        return markers

    def clean_up(self, checkpoint_id: CheckpointId, markers: Mapping[str, str]) -> None:
        self._points.at("clean_up.begin", str(checkpoint_id))
        self._inner.clean_up(checkpoint_id, markers)
        self._points.at("clean_up.end", str(checkpoint_id))

    def finish(self, timeout_s: float) -> None:
        self._inner.finish(timeout_s)

    def close(self) -> None:
        self._inner.close()


class FaultyRestore(TaskRestoreManager):
    """A restore manager with a fault before its restore."""

    def __init__(self, inner: TaskRestoreManager, points: Points) -> None:
        self._inner = inner
        self._points = points

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        self._points.at("restore.begin")
        self._inner.restore(store, marker, target, progress)

    def close(self) -> None:
        self._inner.close()


class HookedStore(ForwardingStore):
    """Calls hooks before and after each write, and before each deletion."""

    def __init__(self, inner: ObjectStore, before: Hook, after: Hook, deleting: Hook | None = None) -> None:
        super().__init__(inner)
        self._before = before
        self._after = after
        self._deleting = deleting or _nothing

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._before(key)
        made = self._inner.put_if_absent(key, data)
        self._after(key)
        return made

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        self._before(key)
        made = self._inner.put_if_match(key, data, tag)
        self._after(key)
        return made

    def delete(self, key: str) -> None:
        self._deleting(key)
        self._inner.delete(key)

    def delete_durably(self, key: str) -> None:
        self._deleting(key)
        self._inner.delete_durably(key)


class HookedSystem(System):
    """A system whose writers call hooks before and after each append."""

    def __init__(self, inner: System, before: Hook, after: Hook) -> None:
        self.name = inner.name
        self._inner = inner
        self._before = before
        self._after = after

    @property
    def dense_offsets(self) -> bool:  # type: ignore[override]
        return self._inner.dense_offsets

    @property
    def fences(self) -> bool:  # type: ignore[override]
        return self._inner.fences

    @property
    def compacts_on_request(self) -> bool:  # type: ignore[override]  # the wrapped one's
        return self._inner.compacts_on_request

    @property
    def keeps_owners(self) -> bool:  # type: ignore[override]
        return self._inner.keeps_owners

    @property
    def reports_appended(self) -> bool:  # type: ignore[override]  # the wrapped one's
        return self._inner.reports_appended

    @property
    def keeps_progress(self) -> bool:  # type: ignore[override]  # the wrapped one's
        return self._inner.keeps_progress

    def admin(self) -> SystemAdmin:
        return self._inner.admin()

    def reader(self) -> SystemReader:
        return self._inner.reader()

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        return HookedWriter(self._inner.writer(identity), identity, self._before, self._after)


class HookedWriter(SystemWriter):
    """Calls hooks before and after each append of something."""

    def __init__(self, inner: SystemWriter, identity: WriterIdentity | None, before: Hook, after: Hook) -> None:
        self._inner = inner
        self._identity = identity
        self._before = before
        self._after = after

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        records = list(records)
        if not records:
            return self._inner.append(ssp, records)
        self._before(str(ssp))
        first = self._inner.append(ssp, records)
        self._after(str(ssp))
        return first

    def begin(self) -> WriterTransaction:
        return MarkedAtCommit(self._identity, self._append_and_report)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        return self._inner.progress(ssps)

    def _append_and_report(
        self,
        records: Mapping[SystemStreamPartition, Iterable[RawRecord]],
        marks: Mapping[SystemStreamPartition, Progress],
    ) -> Appended:
        found: dict[SystemStreamPartition, Any] = {}
        for ssp in sorted(records):
            own = list(records[ssp])
            if own:
                self._before(str(ssp))
            with self._inner.begin() as transaction:
                transaction.append(ssp, own)
                if ssp in marks:
                    transaction.mark(ssp, marks[ssp])
            if own:
                self._after(str(ssp))
            found |= transaction.appended()
        return found

    def close(self) -> None:
        self._inner.close()


def _nothing(_key: str) -> None:
    """No hook."""


def _is_of_snapshot(key: str) -> bool:
    return key.endswith(".zip") or "/files/" in key


def _watch_copies(faults: Faults) -> None:
    """Make the engines of this process meet `copy.begin`. A process serves one job."""
    for engine in (MemoryEngine, RocksDbEngine):
        if not hasattr(engine.copy_to, "func"):
            inner: Callable[[Any, Path], None] = engine.copy_to
            engine.copy_to = _Watched(inner, faults)  # type: ignore[method-assign, assignment]


class _Watched:
    """A method that first meets a fault."""

    def __init__(self, func: Callable[[Any, Path], None], faults: Faults) -> None:
        self.func = func
        self._faults = faults

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else partial(self._call, instance)

    def _call(self, engine: Any, directory: Path) -> None:
        self._faults.at("copy.begin")
        self.func(engine, directory)
