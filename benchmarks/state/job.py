"""A job's state without Spark: the storage of one container, filled, changed and committed from this process.

Its content and changes are the same keys and values on every side, for Spark in Parquet files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import penstock as ps
from benchmarks.harness import files_below
from benchmarks.workload import write_file
from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointId
from penstock.config.load import load_config
from penstock.container.container import Epoch
from penstock.container.shared import EpochResources
from penstock.graph.topology import plan_topology
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import new_token
from penstock.state.backends.base import AdminContext, BackendContext, RestoreProgress
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.engine import Engine
from penstock.state.kept import KeptStores
from penstock.state.reading.comparison import digest
from penstock.state.restore import restore_store
from penstock.system.registry import open_system
from penstock.testing.faulty_store import ForwardingStore
from penstock.wire.ports import JobPackage
from penstock.wire.protocol import CleanUp, Markers, OpenEpoch, TakeSnapshot, UploadSnapshot

STORE = "state"
NEGLIGIBLE_MS = 1.0
"""Where two medians are below this, their ratio is that of the clock's and the scheduler's noise."""
VERIFIED_KEYS = 1_000_000
"""The largest state that is read back after the last commit."""
KEY_BYTES, VALUE_BYTES = 16, 100
ENTRY_BYTES = KEY_BYTES + VALUE_BYTES
SEED = 20130101
PART_KEYS = 50_000
FILL_KEYS = 1_000_000
"""Keys of one batch of the fill."""
Entries = dict[bytes, bytes]
"""Keys, and the value of each."""
_STAGE = 1
_READ_BYTES = 1 << 20


class StateContent:
    """The same calls give the same entries. Values are random bytes, so that nothing is gained by compressing them."""

    def __init__(self, value_bytes: int = VALUE_BYTES) -> None:
        self.keys = 0
        """The number of keys in the state."""
        self._value_bytes = value_bytes
        self._random = np.random.default_rng(SEED)
        self._changes: dict[int, np.random.Generator] = {}

    def add(self, keys: int, at_once: int = PART_KEYS) -> Iterator[Entries]:
        """`count` more keys, in their order and in parts."""
        end = self.keys + keys
        while self.keys < end:
            first, self.keys = self.keys, min(self.keys + at_once, end)
            yield self._entries(list(range(first, self.keys)), self._random)

    def change(self, count: int) -> Entries:
        """`count` keys, anywhere in the state, with new values. The n-th call with a count does not depend on how
        often other counts were asked for."""
        random = self._changes.setdefault(count, np.random.default_rng([SEED, count]))
        return self._entries(random.choice(self.keys, count, replace=False).tolist(), random)

    def _entries(self, numbers: list[int], random: np.random.Generator) -> Entries:
        size = self._value_bytes
        data = random.bytes(len(numbers) * size)
        values = (data[start : start + size] for start in range(0, len(data), size))
        return dict(zip(map(key_of, numbers), values, strict=True))


def key_of(number: int) -> bytes:
    return b"key-%012d" % number


def keys_of(megabytes: int) -> int:
    """The number of keys that make a state of so many MB."""
    return max(1, megabytes * 2**20 // ENTRY_BYTES)


def write_state_inputs(folder: Path, keys: int, counts: Sequence[int]) -> dict[str, Any]:
    """Write the files of a state, and one for each number of changed keys; describe them for a side of Spark."""
    content = StateContent()
    changes = (content.change(count) for count in counts)
    for number, entries in enumerate(chain(content.add(keys, FILL_KEYS), changes)):
        write_entries(folder, number, entries)
    return {"files": str(folder), "fill": -(-keys // FILL_KEYS), "counts": list(counts)}


def write_entries(folder: Path, number: int, entries: Entries) -> Path:
    """One file; they are read in the order of their numbers."""
    keys = pa.array(entries.keys(), pa.binary()).cast(pa.string())
    table = pa.table({"key": keys, "value": pa.array(entries.values(), pa.binary())})
    return write_file(folder, number, table, compression="none", use_dictionary=False)


class Idle(ps.StreamTask):
    """Owns the stores; the benchmark changes them in its place."""

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        """Nothing comes."""


def application(name: str, stores: Sequence[str]) -> ps.StreamApplication:
    app = ps.StreamApplication(name)
    for store in stores:
        app.store(store, key=ps.Bytes(), value=ps.Bytes())
    app.input("local.events").partition_by(str).process(Idle, stores=list(stores), id="use")
    return app


class StateJob:
    """The tasks of a job that exists already, to which the stores are new: the first commit is a base of all they hold.

    They live in epochs of one container: in the next one, stores that are open are taken over, and others restored.
    """

    def __init__(
        self,
        work: Path,
        backend: str = "changelog-files",
        settings: Mapping[str, str] | None = None,
        stores: Sequence[str] = (STORE,),
        tasks: int = 1,
        **resources: Any,
    ) -> None:
        """`settings` are the job's configuration, beyond where things lie; `resources` those of its epochs."""
        self.local = work / "local"
        self.roots = (work / "jobs", work / "streams")
        """The folders that what is durable lies in."""
        self.backend = backend
        overrides = {
            "job.root": str(self.roots[0]),
            "job.logged.store.base.dir": str(self.local),
            "systems.local.path": str(self.roots[1]),
            "stores.backup.factories": backend,
            **(settings or {}),
        }
        app = application("state", stores)
        self.config = load_config(overrides=overrides, environ={}, default_job_name=app.name)
        self._paths = JobPaths(self.config.job.name, self.config.job.id)
        self._systems = {name: open_system(self.config.system(name)) for name in self.config.system_names}
        self._objects = open_store(self.config.job.root)
        self._content = StateContent()
        self._stores, self._tasks = tuple(stores), tuple(range(tasks))
        self._batch = self._number = 0
        self._last_id = self._next_id(None)
        self._markers: Markers = {}
        self._resources = {"kept_stores": KeptStores("benchmark"), **resources}
        context = AdminContext(self._objects, self._paths, tasks, self._stores, self.config, self._systems)
        with closing(backend_factory(backend).admin(context)) as admin:
            admin.create_resources(1)
            admin.validate_resources()
        runtime = RuntimeSettings(app.name, tasks, {})
        self._package = JobPackage(plan_topology(app.graph()), runtime, self.config, "uid", "probe", self._systems)
        self.open()

    def open(self) -> None:
        """The next epoch, at the last commit."""
        self._number += 1
        resources = EpochResources(self._package, "benchmark", self._number, len(self._tasks), **self._resources)
        covered = self._stores if self._markers else ()
        request = OpenEpoch(b"", self._batch, str(self._last_id), self._markers, covered, self._tasks)
        self.epoch = Epoch(resources, request, threading.Event(), lambda _: None)
        self.folders = resources.folders

    def engine(self, task: int = 0, store: str = STORE) -> Engine:
        return self.epoch.tasks[task].engine(store)

    def prepare(self, keys: int) -> None:
        """Put keys into the engine, in bulk and before the first commit, and back it up as a whole."""
        for entries in self._content.add(keys):
            self.engine().apply(entries)
        self.commit()

    def change(self, count: int) -> Entries:
        """Give that many keys, all different and anywhere in the state, new values: a batch and its End."""
        changes = self._content.change(count)
        self.run_batch(lambda *_: changes)
        return changes

    def run_batch(self, changes: Callable[[int, str], Mapping[bytes, bytes | None]]) -> None:
        """The next batch, and its End, in which each store of each task gets changes."""
        self._batch += 1
        for task, instance in self.epoch.tasks.items():
            token = new_token()
            attempt = instance.start_attempt(_STAGE, token, Batch(self._batch, 1, 1))
            for store, overlay in attempt.instance.overlays.items():
                overlay.changes.update(changes(task, store))
            instance.finish_attempt(attempt)
            instance.end(self._batch, {_STAGE: token})

    def commit(self, *, last: bool = False) -> dict[str, float]:
        """A whole commit, as a container does it when the driver asks. Returns the milliseconds of its parts.

        Processing waits for `snapshot_ms`. From there, `copies_ms` pass until the copies are made, for which the
        tasks' next End waits if it comes that early, and then `upload_ms` until everything is durable and published.
        """
        self._last_id = self._next_id(self._last_id)
        began = time.perf_counter()
        self.epoch.snapshot(TakeSnapshot(str(self._last_id), last))
        taken = time.perf_counter()
        for commit in self.epoch._commits._commits.values():
            commit.await_copies()
        copied = time.perf_counter()
        self._markers = self.epoch.upload(UploadSnapshot(str(self._last_id))).markers
        self.epoch.clean_up(CleanUp(str(self._last_id), self._markers))
        moments = (began, taken, copied, time.perf_counter())
        parts = ((later - sooner) * 1000 for sooner, later in pairwise(moments))
        return dict(zip(("snapshot_ms", "copies_ms", "upload_ms"), parts, strict=True))

    def restore(self, directory: Path) -> Engine:
        """The open engine of the only store as of the last commit, in a new folder."""
        marker = self._markers["0"][self.backend][STORE]
        context = BackendContext(self._objects, self._paths, 0, (STORE,), self._number + 1, self.config, self._systems)
        markers, to_open = {self.backend: {STORE: marker}}, partial(self.folders.open, STORE)
        progress = RestoreProgress(threading.Event(), lambda _: None)
        return restore_store(lambda _: context, 0, STORE, (self.backend,), markers, directory, to_open, progress).engine

    def is_restored(self, directory: Path) -> bool | None:
        """True if a restore gives the state of the last commit. None of a state that is too large to be read back."""
        if self._content.keys > VERIFIED_KEYS:
            return None
        with closing(self.restore(directory)) as engine:
            return digest(engine) == digest(self.engine())

    def written(self) -> dict[str, int]:
        """The objects that the `changelog-files` backend has written: deltas, and snapshots with the files they share.
        Nothing is deleted while a benchmark runs."""
        found = {"delta_bytes": 0, "snapshot_bytes": 0}
        for path in files_below(self.roots[0]):
            found["delta_bytes" if path.suffix == ".delta" else "snapshot_bytes"] += path.stat().st_size
        return found

    def finish_snapshots(self, timeout_s: float = 600) -> None:
        """Wait for what backends do in the background."""
        self.epoch.services.wind_down(timeout_s)

    def close(self) -> None:
        self.epoch.leave()
        self._objects.close()

    def _next_id(self, last: CheckpointId | None) -> CheckpointId:
        return CheckpointId.next_after(last, time.time_ns() // 1_000_000, time.monotonic_ns())


def _watched(name: str, kind: str) -> Any:
    """Call `watch`, and then the store inside."""

    def call(self: WatchedStore, key: str, *given: Any, **options: Any) -> Any:
        self.watch(kind, len(given[0]) if kind == "put" else 0)
        return getattr(self._inner, name)(key, *given, **options)

    return call


class WatchedStore(ForwardingStore):
    """Tells `watch` the kind of each call and its bytes: before a write, and after a read, also one that fails."""

    def __init__(self, inner: ObjectStore, watch: Callable[[str, int], None]) -> None:
        super().__init__(inner)
        self.watch = watch

    put_if_absent, put_if_match = _watched("put_if_absent", "put"), _watched("put_if_match", "put")
    list, sizes = _watched("list", "list"), _watched("sizes", "list")
    delete, delete_durably = _watched("delete", "delete"), _watched("delete_durably", "delete")

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        yield self.get(key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        found = b"", ""
        try:
            found = super().get_with_tag(key)
        finally:  # a read of what is not there is one as well
            self.watch("get", len(found[0]))
        return found


def time_cp(source: Path, target: Path, *, synced: bool = False) -> float:
    """Seconds that `cp -r` takes and, if it is to be `synced`, until the copy is on disk. The copy is removed."""
    settle([source])
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    if synced:
        os.sync()
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def settle(folders: Iterable[Path], page_cache: Literal["warm", "cold"] = "warm") -> None:
    """Everything written is on disk, and the files of the folders are all in the page cache, or none of them is."""
    os.sync()
    for folder in folders:
        for path in files_below(folder):
            with path.open("rb", buffering=0) as file:
                if page_cache == "cold":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.read(_READ_BYTES):
                        pass
