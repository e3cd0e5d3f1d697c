"""A job's state without Spark: one task in a container's storage, filled, changed and committed from this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from benchmarks.state.content import SEED, StateContent
from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointId
from penstock.config.load import load_config
from penstock.container.epoch.commit import TaskCommitManager
from penstock.container.epoch.container import Epoch
from penstock.container.shared import EpochResources
from penstock.graph.topology import plan_topology
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import new_token
from penstock.state.backends.base import AdminContext, BackendContext, RestoreProgress
from penstock.state.backends.changelog_files.backup import ChangelogFilesBackup
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.engine import Engine
from penstock.state.records import Changes
from penstock.state.restore import restore_store
from penstock.system.registry import open_system
from penstock.wire.ports import JobPackage
from penstock.wire.protocol import CleanUp, OpenEpoch, TakeSnapshot, UploadSnapshot

STORE = "state"
_TASK, _STAGE, _EPOCH = 0, 1, 1


class Idle(ps.StreamTask):
    """Owns the store; the benchmark changes it in its place."""

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        """Nothing comes."""


def application() -> ps.StreamApplication:
    """One store of bytes."""
    app = ps.StreamApplication("state")
    app.store(STORE, key=ps.Bytes(), value=ps.Bytes())
    app.input("local.events").process(Idle, stores=[STORE])
    return app


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """The time of one commit, in milliseconds."""

    snapshot_ms: float
    """The synchronous part: processing waits for it."""
    copies_ms: float
    """From there until the copies are made: the task's next End waits for it, if it comes that early."""
    upload_ms: float
    """From there until everything is durable and published; no one waits."""

    @property
    def durable_ms(self) -> float:
        """All of it."""
        return self.snapshot_ms + self.copies_ms + self.upload_ms


@dataclass(frozen=True, slots=True)
class Written:
    """The objects that the `changelog-files` backend has written. Nothing is deleted while a benchmark runs."""

    delta_bytes: int
    snapshot_bytes: int
    """Snapshots, and the files they share."""
    snapshots: int


class StateJob:
    """A task of a job that exists already, to which the store is new: its first commit is a base of all it holds."""

    def __init__(
        self,
        work: Path,
        backend: str,
        value_bytes: int,
        settings: Mapping[str, str] | None = None,
        seed: int = SEED,
    ) -> None:
        """`settings` are the job's configuration, beyond where things lie."""
        self.roots = (work / "jobs", work / "streams")
        """The folders that what is durable lies in."""
        self.backend = backend
        overrides = {
            "job.root": str(self.roots[0]),
            "job.logged.store.base.dir": str(work / "local"),
            "systems.local.path": str(self.roots[1]),
            "stores.backup.factories": backend,
            **(settings or {}),
        }
        app = application()
        self._config = load_config(overrides=overrides, environ={}, default_job_name=app.name)
        self._paths = JobPaths(self._config.job.name, self._config.job.id)
        self._systems = {name: open_system(self._config.system(name)) for name in self._config.system_names}
        self._objects = open_store(self._config.job.root)
        self._content = StateContent(value_bytes, seed)
        self._batch = 0
        self._last_id = self._next_id(None)
        self.marker = ""
        """The marker of the last commit."""
        self._create_resources()
        runtime = RuntimeSettings(app.name, 1, {})
        package = JobPackage(plan_topology(app.graph()), runtime, self._config, "uid", "probe", self._systems)
        self._resources = EpochResources(package, "benchmark", _EPOCH, 1)
        request = OpenEpoch(b"", 0, str(self._last_id), {}, (), (_TASK,))
        self._epoch = Epoch(self._resources, request, threading.Event(), lambda _: None)
        self._task = self._epoch.tasks[_TASK]

    @property
    def engine(self) -> Engine:
        """The task's own."""
        return self._task.engine(STORE)

    def fill(self, keys: int) -> None:
        """Put keys into the engine, in bulk and before the first commit."""
        for entries in self._content.add(keys):
            self.engine.apply(entries.as_dict())

    def change(self, count: int) -> Changes:
        """Give that many keys, all different and anywhere in the state, new values: a batch and its End."""
        changes = self._content.change(count).as_dict()
        token = new_token()
        attempt = self._task.start_attempt(_STAGE, token, Batch(self._batch + 1, 1, 0))
        attempt.instance.overlays[STORE].changes.update(changes)
        self._task.finish_attempt(attempt)
        self._batch += 1
        self._task.end(self._batch, {_STAGE: token})
        return changes

    def commit(self) -> CommitTimes:
        """A whole commit, as a container does it when the driver asks."""
        self._last_id = self._next_id(self._last_id)
        began = time.perf_counter()
        self._epoch.snapshot(TakeSnapshot(str(self._last_id)))
        taken = time.perf_counter()
        self._commit.await_copies()
        copied = time.perf_counter()
        markers = self._epoch.upload(UploadSnapshot(str(self._last_id))).markers
        uploaded = time.perf_counter()
        self._epoch.clean_up(CleanUp(str(self._last_id), markers))
        self.marker = markers[str(_TASK)][self.backend][STORE]
        return CommitTimes((taken - began) * 1000, (copied - taken) * 1000, (uploaded - copied) * 1000)

    def restore(self, directory: Path) -> tuple[Engine, int]:
        """The store as of the last commit, in a new folder; the open engine, and the bytes the restore counted."""
        counted: list[int] = []
        context = BackendContext(self._objects, self._paths, _TASK, (STORE,), _EPOCH + 1, self._config, self._systems)
        restored = restore_store(
            lambda _: context,
            _TASK,
            STORE,
            (self.backend,),
            {self.backend: {STORE: self.marker}},
            directory,
            lambda path: self._resources.folders.open(STORE, path),
            RestoreProgress(threading.Event(), counted.append),
        )
        return restored.engine, sum(counted)

    def durable_bytes(self) -> int:
        """The size of everything the backend keeps."""
        return sum(folder_bytes(root) for root in self.roots)

    def written(self) -> Written:
        """By the `changelog-files` backend."""
        by_kind = {"delta": 0, "zip": 0, "": 0}
        snapshots = 0
        for path in files_below(self.roots[0]):
            kind = path.suffix[1:] if path.suffix in (".delta", ".zip") else ""
            by_kind[kind] += path.stat().st_size
            snapshots += kind == "zip"
        return Written(by_kind["delta"], by_kind["zip"] + by_kind[""], snapshots)

    def snapshots_under_way(self) -> tuple[bool, int]:
        """True while the `changelog-files` backend makes a snapshot, and the number that it has made."""
        manager, _ = self._commit._backups[self.backend]
        assert isinstance(manager, ChangelogFilesBackup)
        keeper = manager._keepers[STORE]
        return keeper.is_busy, len(keeper.made())

    def finish_snapshots(self, timeout_s: float = 600) -> None:
        """Wait for what backends do in the background."""
        self._epoch.services.wind_down(timeout_s)

    def close(self) -> None:
        """Close it all."""
        self._epoch.leave()
        self._objects.close()

    @property
    def _commit(self) -> TaskCommitManager:
        return self._epoch._commits._commits[_TASK]

    def _next_id(self, last: CheckpointId | None) -> CheckpointId:
        return CheckpointId.next_after(last, time.time_ns() // 1_000_000, time.monotonic_ns())

    def _create_resources(self) -> None:
        context = AdminContext(self._objects, self._paths, 1, (STORE,), self._config, self._systems)
        admin = backend_factory(self.backend).admin(context)
        admin.create_resources(_EPOCH)
        admin.validate_resources()
        admin.close()


def files_below(folder: Path) -> list[Path]:
    """Every file."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def folder_bytes(folder: Path) -> int:
    """The size of every file."""
    return sum(path.stat().st_size for path in files_below(folder))
