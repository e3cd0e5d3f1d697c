"""A job's state without Spark: one task in a container's storage, filled, changed and committed from this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import penstock as ps
from penstock.checkpoint.id import CheckpointId
from penstock.config.load import load_config
from penstock.container.container import JobPackage
from penstock.container.protocol import Identity, OpenCall
from penstock.container.storage import ContainerStorage
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.runtime.attempt import new_token
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.topology import plan_topology
from penstock.state.backends.base import AdminContext, BackendContext, RestoreProgress
from penstock.state.backends.registry import backend_factory
from penstock.state.engine import Engine
from penstock.state.restore import restore_store
from penstock.system.registry import open_system

STORE = "state"
KEY_BYTES = 16
VALUE_BYTES = 100
_TASK, _STAGE, _EPOCH = 0, 1, 1
_FILL_KEYS = 50_000


class Idle(ps.StreamTask):
    """Owns the store; the benchmark changes it in its place."""

    def process(
        self,
        envelope: ps.IncomingMessageEnvelope,
        collector: ps.MessageCollector,
        coordinator: ps.TaskCoordinator,
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
    """What one commit took, in milliseconds."""

    snapshot_ms: float
    """The synchronous part: processing waits for it."""
    copies_ms: float
    """From there until the copies are made: the task's next End waits for it, if it comes that early."""
    upload_ms: float
    """From there until everything is durable and published; no one waits."""


class StateJob:
    """A task of a job that exists already, to which the store is new: its first commit is a base of all it holds.

    The values are random bytes, so that nothing is gained by compressing them.
    """

    def __init__(self, work: Path, backend: str, value_bytes: int, seed: int = 20130101) -> None:
        self.roots = (work / "jobs", work / "streams")
        """The folders that what is durable lies in."""
        self.backend = backend
        overrides = {
            "job.root": str(self.roots[0]),
            "job.logged.store.base.dir": str(work / "local"),
            "systems.local.path": str(self.roots[1]),
            "stores.backup.factories": backend,
        }
        app = application()
        self._config = load_config(overrides=overrides, environ={}, default_job_name=app.name)
        self._paths = JobPaths(self._config.job.name, self._config.job.id)
        self._systems = {name: open_system(self._config.system(name)) for name in self._config.system_names}
        self._objects = open_store(self._config.job.root)
        self._value_bytes = value_bytes
        self._random = np.random.default_rng(seed)
        self._keys = 0
        self._batch = 0
        self._last_id = self._next_id(None)
        self.marker = ""
        """The marker of the last commit."""
        self._create_resources()
        settings = RuntimeSettings(app.name, 1, {})
        package = JobPackage(plan_topology(app.graph()), settings, self._config, "uid", "probe", self._systems)
        self._storage = ContainerStorage(package, "benchmark", _EPOCH)
        call = OpenCall(Identity("benchmark", _EPOCH), 0, str(self._last_id), {}, [], [_TASK])
        self._task = self._storage.restore(call, threading.Event(), lambda _: None)[_TASK]

    @property
    def engine(self) -> Engine:
        """The task's own."""
        return self._task.engine(STORE)

    def fill(self, keys: int) -> None:
        """Put keys into the engine, in bulk and before the first commit."""
        for start in range(self._keys, self._keys + keys, _FILL_KEYS):
            numbers = range(start, min(start + _FILL_KEYS, self._keys + keys))
            self.engine.apply(dict(zip(map(_key, numbers), self._values(len(numbers)), strict=True)))
        self._keys += keys

    def change(self, count: int) -> None:
        """Give that many keys, all different and anywhere in the state, new values: a batch and its End."""
        numbers = self._random.choice(self._keys, count, replace=False).tolist()
        token = new_token()
        attempt = self._task.start_attempt(_STAGE, token)
        attempt.instance.overlays[STORE].changes.update(zip(map(_key, numbers), self._values(count), strict=True))
        self._task.finish_attempt(attempt)
        self._batch += 1
        self._task.end(self._batch, {_STAGE: token})

    def commit(self) -> CommitTimes:
        """A whole commit, as a container does it when the driver asks."""
        self._last_id = self._next_id(self._last_id)
        began = time.perf_counter()
        self._storage.snapshot(self._last_id, last=False)
        taken = time.perf_counter()
        self._storage._commits[_TASK].await_copies()
        copied = time.perf_counter()
        markers = self._storage.upload(self._last_id)
        uploaded = time.perf_counter()
        self._storage.clean_up(self._last_id, markers)
        self.marker = markers[str(_TASK)][self.backend][STORE]
        return CommitTimes((taken - began) * 1000, (copied - taken) * 1000, (uploaded - copied) * 1000)

    def restore(self, directory: Path) -> tuple[Engine, int]:
        """The store as of the last commit, in a new folder; the open engine, and the bytes the restore counted."""
        counted: list[int] = []
        restored = restore_store(
            BackendContext(self._objects, self._paths, _TASK, (STORE,), _EPOCH + 1, self._config, self._systems),
            STORE,
            (self.backend,),
            {self.backend: {STORE: self.marker}},
            directory,
            lambda path: self._storage._folders.open(STORE, path),
            RestoreProgress(threading.Event(), counted.append),
        )
        return restored.engine, sum(counted)

    def durable_bytes(self) -> int:
        """The size of everything the backend keeps."""
        return sum(folder_bytes(root) for root in self.roots)

    def close(self) -> None:
        """Close it all."""
        self._storage.stop()
        self._task.close()
        self._storage.close()
        self._objects.close()

    def _values(self, count: int) -> Iterator[bytes]:
        size = self._value_bytes
        data = self._random.bytes(count * size)
        return (data[start : start + size] for start in range(0, count * size, size))

    def _next_id(self, last: CheckpointId | None) -> CheckpointId:
        return CheckpointId.next_after(last, time.time_ns() // 1_000_000, time.monotonic_ns())

    def _create_resources(self) -> None:
        context = AdminContext(self._objects, self._paths, 1, (STORE,), self._config, self._systems)
        admin = backend_factory(self.backend).admin(context)
        admin.create_resources(_EPOCH)
        admin.validate_resources()
        admin.close()


def _key(number: int) -> bytes:
    return b"key-%012d" % number


def files_below(folder: Path) -> list[Path]:
    """Every file."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def folder_bytes(folder: Path) -> int:
    """The size of every file."""
    return sum(path.stat().st_size for path in files_below(folder))
