"""Moves the state of a checkpoint to another number of tasks: reads the parts of stores, and makes those of the new
checkpoint. It runs in any process, and anywhere; the caller brings the entries from one to the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.value import Markers
from penstock.config.settings import StoreSettings
from penstock.errors import IncompatibleError, NotFoundError
from penstock.objects.open import open_job_root
from penstock.repartition.placement import CopiedPlacement, EmptyPlacement, Placement, StayingPlacement
from penstock.repartition.split import MovedEntries, StorePart, merged, moved_entries
from penstock.state.backends.base import StoreCopy
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine
from penstock.state.outside_backup import OutsideBackup
from penstock.state.reading.reader import StateReader
from penstock.system.registry import open_systems

_BLOCK_CACHE_BYTES, _WRITE_BUFFER_BYTES = 1 << 20, 32 << 20
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TaskPart:
    """The part of a store that a task has."""

    store: str
    task: int


@dataclass(frozen=True, slots=True)
class MadePart:
    """A part of the new checkpoint that was backed up."""

    part: TaskPart
    entries: int
    markers: Mapping[str, str]
    """By backend."""


@dataclass(frozen=True, slots=True)
class Move:
    """Everything that one process needs to know. Picklable."""

    backup: OutsideBackup
    record: CheckpointRecord
    """The checkpoint that is moved."""
    after: int
    """The number of tasks of the new one."""
    placements: Mapping[str, Placement]
    """By store of the checkpoint."""
    expires_ms: Mapping[str, int]
    """By store whose entries have a time to live, see `StorePart`."""

    def sources(self) -> list[TaskPart]:
        """The parts that are read."""
        return [TaskPart(store, task) for store, place in self.placements.items() for task in self._read(place)]

    def targets(self) -> list[TaskPart]:
        """The parts that are made. Those of stores that stay are there, but for new tasks."""
        first = {store: self.record.task_count if self._stays(store) else 0 for store in self.placements}
        return [TaskPart(store, task) for task in range(self.after) for store in first if task >= first[store]]

    def _stays(self, store: str) -> bool:
        return isinstance(self.placements.get(store), StayingPlacement)

    def _read(self, place: Placement) -> Iterable[int]:
        if isinstance(place, EmptyPlacement):
            return ()
        if isinstance(place, CopiedPlacement):
            return (0,)
        return range(self.after if isinstance(place, StayingPlacement) else 0, self.record.task_count)

    def split(self, part: TaskPart, scratch: Path | None = None) -> Iterator[MovedEntries]:
        """The entries of a part, by the tasks that they move to.

        Args:
            scratch: a folder in which the store is restored; by default among the temporary files.

        Raises:
            IncompatibleError: an entry is not where its key belongs.
            CorruptError, RetryableError: the part cannot be read.
        """
        config, paths = self.backup.config, self.backup.paths
        own = StorePart(part.store, part.task, self.expires_ms.get(part.store))
        with closing(open_job_root(config.job)) as objects:
            reader = StateReader(config, paths, objects, open_systems(config), scratch=scratch)
            with reader, reader.open(self.record, part.store, part.task) as engine:
                yield from moved_entries(own, engine, self.placements[part.store], self.after)

    def fill(self, part: TaskPart, entries: Iterable[tuple[bytes, bytes]], scratch: Path) -> MadePart:
        """Make a part of the new checkpoint, and back it up.

        Args:
            part: one of `targets`.
            entries: its entries, by key.
            scratch: a folder of this call alone.

        Raises:
            IncompatibleError: two tasks had an entry of the same key.
            PenstockError: a backend failed.
        """
        settings, place = self.backup.config.store(part.store), self.placements[part.store]
        filled, copied = scratch / "filled", scratch / "copied"
        small = settings.put(StoreSettings.rocksdb_block_cache_bytes, _BLOCK_CACHE_BYTES)
        small = small.put(StoreSettings.rocksdb_write_buffer_bytes, _WRITE_BUFFER_BYTES)
        with closing(open_engine(small, filled)) as engine:
            count = _load(engine, _once(entries, place, part))
            engine.copy_to(copied)
        shutil.rmtree(filled, ignore_errors=True)
        copy = StoreCopy(copied, partial(open_engine, small, copied, read_only=True), partial(shutil.rmtree, copied))
        return MadePart(part, count, self.backup.upload(part.task, part.store, copy))

    def markers(self, made: Iterable[MadePart], kept: Mapping[int, Markers]) -> dict[int, Markers]:
        """The markers of the new checkpoint, by task.

        Args:
            made: all parts that were made.
            kept: the markers of the checkpoint that is moved.

        Raises:
            NotFoundError: a part was not made.
        """
        found: dict[int, dict[str, dict[str, str]]] = {task: {} for task in range(self.after)}
        for task in range(min(self.after, self.record.task_count)):
            for backend, stores in kept.get(task, {}).items():
                own = {store: marker for store, marker in stores.items() if self._stays(store)}
                if own:
                    found[task][backend] = own
        done = {each.part: each.markers for each in made}
        for part in self.targets():
            if part not in done:
                raise NotFoundError(f"store `{part.store}` of task {part.task} was not backed up")
            for backend, marker in done[part].items():
                found[part.task].setdefault(backend, {})[part.store] = marker
        return dict(found)


def _once(entries: Iterable[tuple[bytes, bytes]], place: Placement, part: TaskPart) -> Iterator[tuple[bytes, bytes]]:
    """Each key once: what several tasks had is merged."""
    last: tuple[bytes, bytes] | None = None
    for key, value in entries:
        if last is not None and last[0] == key:
            found = merged(place, key, last[1], value)
            if found is None:
                raise IncompatibleError(
                    f"two tasks had an entry of store `{part.store}` with the key {key!r}, and both would be in task "
                    f"{part.task}. Nothing was changed"
                )
            last = key, found
            continue
        if last is not None:
            yield last
        last = key, value
    if last is not None:
        yield last


def _load(engine: Engine, entries: Iterable[tuple[bytes, bytes]]) -> int:
    """Returns the number of entries."""
    piece: dict[bytes, bytes | None] = {}
    size = count = 0
    for key, value in entries:
        piece[key] = value
        count += 1
        size += len(key) + len(value)
        if size >= _PIECE_BYTES:
            engine.load(piece)
            piece, size = {}, 0
    if piece:
        engine.load(piece)
    return count


def move_here(move: Move, scratch: Path) -> list[MadePart]:
    """Move everything in this process, in memory: for small states."""
    scratch.mkdir(parents=True, exist_ok=True)
    found: dict[TaskPart, list[tuple[bytes, bytes]]] = {part: [] for part in move.targets()}
    for source in move.sources():
        for task, entries in move.split(source, scratch):
            found[TaskPart(source.store, task)] += entries.items()
    made = []
    for number, (part, own) in enumerate(found.items()):
        folder = scratch / f"part-{number}"
        folder.mkdir()
        made.append(move.fill(part, sorted(own, key=lambda entry: entry[0]), folder))
        shutil.rmtree(folder, ignore_errors=True)
    return made
