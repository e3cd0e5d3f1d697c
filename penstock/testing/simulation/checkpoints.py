"""The invariants of checkpoints: each retained one can be restored from every marker that it has, and each was put
behind the claim that it belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim, decode_record
from penstock.checkpoint.task_versions import markers_of
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.start.startpoints.request import NAMESPACE
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine
from penstock.state.reading import reader as reading
from penstock.state.reading.reader import StateReader
from penstock.system.base import System

Content = dict[bytes, bytes]
_reading: Any = reading
_open_whatever = _reading.open_whatever


def _open_in_memory(settings: StoreSettings, directory: Path) -> Engine:
    """An empty folder becomes a store in memory: to open RocksDB takes as long as half a life."""
    if any(directory.iterdir()):
        found: Engine = _open_whatever(settings, directory)
        return found
    return open_engine(
        settings.put(StoreSettings.factory, "memory") if settings.factory == "rocksdb" else settings, directory
    )


class LogWatch:
    """Follows the records of the log in the order in which they are put. Only the writer of the last claim may put a
    checkpoint at the end of the log. Of the requests for startpoints, each is taken by one record."""

    def __init__(self, paths: JobPaths, broken: list[str]) -> None:
        """`broken`: gets what does not hold, in words."""
        self._paths = paths
        self._broken = broken
        self._last = -1
        self._owner: Claim | None = None
        self._asked: dict[str, str] = {}
        """Uuid of a request → its key."""
        self._taken: set[str] = set()

    def lost_requests(self, keys: Collection[str]) -> list[str]:
        """The requests that no record took, and that are not among these keys any more, in words."""
        lost = [key for uuid, key in self._asked.items() if uuid not in self._taken and key not in keys]
        return [f"the startpoint `{key}` is deleted, and no start took it" for key in lost]

    def on_put(self, key: str, data: bytes) -> None:
        if key.startswith(f"{self._paths.metadata_folder(NAMESPACE)}/"):
            self._asked[self._paths.metadata_key(NAMESPACE, key).rpartition("/")[2]] = key
        slot = self._paths.slot_of(key)
        if slot is None or slot <= self._last:
            return  # in a slot that was freed nothing counts
        self._last, record = slot, decode_record(data, key)
        if isinstance(record, Claim):
            self._owner = record
        elif self._owner is None or (record.epoch, record.writer) != (self._owner.epoch, self._owner.writer):
            held = "nobody" if self._owner is None else f"epoch {self._owner.epoch}"
            self._broken.append(f"checkpoint {record.id} of epoch {record.epoch} was written to a log of {held}")
        else:
            twice = self._taken.intersection(record.consumed_startpoints)
            self._broken += [f"checkpoint {record.id} took the startpoint {uuid} once more" for uuid in sorted(twice)]
            self._taken.update(record.consumed_startpoints)


class CheckpointWatch:
    """Restores retained checkpoints, each once in a while, and remembers what was in them."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, systems: Mapping[str, System]) -> None:
        self._objects = objects
        self._paths = paths
        self._systems = systems
        self._known: dict[str, dict[tuple[str, int], Content]] = {}
        """Checkpoint → (store, task) → the entries that it had when it was looked at first."""
        self.checked = 0
        """Restores so far."""

    def look(self, config: JobConfig) -> list[str]:
        """Restore the first and the last retained checkpoint from all markers. Returns what is broken, in words."""
        restorable = CheckpointLog(self._objects, self._paths).read().restorable
        return [
            problem
            for record in {each.id: each for each in (*restorable[:1], *restorable[-1:])}.values()
            for problem in self._broken(record, config)
        ]

    def look_at_all(self, config: JobConfig) -> list[str]:
        """As `look`, for every retained checkpoint."""
        restorable = CheckpointLog(self._objects, self._paths).read().restorable
        return [problem for record in restorable for problem in self._broken(record, config)]

    def seen(self, record: CheckpointRecord, config: JobConfig) -> dict[str, list[tuple[int, bytes, bytes]]]:
        """Store → (task, key, value) of all entries of a checkpoint, as the application has them."""
        found: dict[str, list[tuple[int, bytes, bytes]]] = {}
        with closing(_Reader(config, self._paths, self._objects, self._systems)) as reader:
            for store in record.stores:
                found[store] = [
                    (task, *entry) for task in range(record.task_count) for entry in reader.seen(record, store, task)
                ]
        return found

    def _broken(self, record: CheckpointRecord, config: JobConfig) -> list[str]:
        found: list[str] = []
        known = self._known.setdefault(str(record.id), {})
        with closing(_Reader(config, self._paths, self._objects, self._systems)) as reader:
            for task in range(record.task_count):
                own = markers_of(record, task, config.changelog_partitions(record.stores, task))
                for store in record.stores:
                    backends = [name for name in own if store in own[name]]
                    if not backends:
                        found.append(f"checkpoint {record.id} has no marker of `{store}` of task {task}")
                    for backend in backends:
                        what = f"checkpoint {record.id}, store `{store}` of task {task}, from {backend}"
                        try:
                            content = reader.content(record, store, task, backend)
                        except PenstockError as error:
                            found.append(f"{what} cannot be restored: {type(error).__name__}: {error}")
                            continue
                        self.checked += 1
                        if content != known.setdefault((store, task), content):
                            found.append(f"{what} has {content}; it had {known[store, task]}")
        return found


class _Reader:
    def __init__(self, config: JobConfig, paths: JobPaths, objects: ObjectStore, systems: Mapping[str, System]) -> None:
        _reading.open_whatever = _open_in_memory
        scratch = Path(config.job.logged_store_base_dir)
        scratch.mkdir(parents=True, exist_ok=True)
        self._reader = StateReader(config, paths, objects, systems, scratch=scratch)

    def content(self, record: CheckpointRecord, store: str, task: int, backend: str) -> Content:
        with self._reader.open(record, store, task, backend) as engine:
            return dict(engine.scan(None, None))

    def seen(self, record: CheckpointRecord, store: str, task: int) -> list[tuple[bytes, bytes]]:
        with self._reader.open(record, store, task) as engine:
            return list(reading.seen_entries(record, store, engine).scan(None, None))

    def close(self) -> None:
        self._reader.__exit__(None, None, None)
