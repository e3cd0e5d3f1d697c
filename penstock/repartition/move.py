"""Moves the state of a checkpoint to another number of tasks: reads the parts of stores, gives the entries of each part
to the tasks that own them from now on, and makes the parts of the new checkpoint.

It runs in any process, and anywhere; the caller brings the entries from one to the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.base.wording import argument, printable
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_values import Markers
from penstock.config.settings import StoreSettings
from penstock.errors import IncompatibleError, NotFoundError
from penstock.objects.open import open_job_root
from penstock.repartition.placement import ByKey, CopiedPlacement, EmptyPlacement, Placement, StayingPlacement
from penstock.state.backends.base import StoreCopy
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine
from penstock.state.outside_backup import OutsideBackup
from penstock.state.reading.reader import StateReader
from penstock.state.stores import timed_entries
from penstock.system.partitioner import partitions_of
from penstock.system.registry import open_systems

_AT_ONCE = 4096
_CHUNK_BYTES = 4 << 20
_SHOWN = 80


class MovedEntries(NamedTuple):
    """Entries of a store for one task."""

    task: int
    entries: dict[bytes, bytes]
    """By their keys in the engine."""


class _Entry(NamedTuple):
    key: bytes
    """As the store's writer has it."""
    place: bytes
    """The same in the engine."""
    data: bytes


@dataclass(frozen=True, slots=True)
class StorePart:
    """One task's part of a store."""

    store: str
    task: int
    expires_ms: int | None = None
    """The batch time from which on entries are expired that have no time yet. None: they have no time to live."""


def moved_entries(part: StorePart, engine: Engine, place: Placement, after: int) -> Iterator[MovedEntries]:
    """Every entry, in pieces of some megabytes.

    Args:
        part: what the engine holds.
        place: where the entries of the store move to.
        after: the number of tasks from now on.

    Raises:
        IncompatibleError: an entry is not in the task that owns the key of its messages: the placement is wrong.
    """
    pending = _Pending(expires=part.expires_ms is not None)
    if isinstance(place, ByKey):
        found = _by_key(part, _entries(part, engine), place, after)
    else:
        found = ((task, entry) for entry in _entries(part, engine) for task in _targets(part, place, after))
    for task, entry in found:
        yield from pending.add(task, entry)
    yield from pending.rest()


def merged(place: Placement, key: bytes, old: bytes, new: bytes) -> bytes | None:
    """The value of a key that two tasks had. None: they cannot have it in common."""
    if key == timed_entries.META:
        return new
    merge = place.merges.get(key) if isinstance(place, ByKey) else None
    return None if merge is None else merge(old, new)


class _Pending:
    """Entries by task, given out when there are enough of them."""

    def __init__(self, *, expires: bool) -> None:
        self._expires = expires
        self._entries: dict[int, dict[bytes, bytes]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, task: int, entry: _Entry) -> Iterator[MovedEntries]:
        own = self._entries.get(task)
        if own is None:
            own = self._entries[task] = {timed_entries.META: timed_entries.meta_bytes(None)} if self._expires else {}
            self._sizes[task] = 0
        own[entry.place] = entry.data
        if self._expires:
            own[timed_entries.index_key(entry.data, entry.place)] = b""
        self._sizes[task] += len(entry.place) + len(entry.data)
        if self._sizes[task] >= _CHUNK_BYTES:
            del self._sizes[task]
            yield MovedEntries(task, self._entries.pop(task))

    def rest(self) -> Iterator[MovedEntries]:
        return (MovedEntries(task, own) for task, own in sorted(self._entries.items()))


def _entries(part: StorePart, engine: Engine) -> Iterator[_Entry]:
    """The entries; of a store whose entries have a time to live, each with a header that has a place in the index,
    whether it has expired or not."""
    if part.expires_ms is None:
        return (_Entry(key, key, data) for key, data in engine.scan(None, None))
    meta = engine.get(timed_entries.META)
    if meta is None or not timed_entries.has_begun(meta):
        found = _unbegun(engine, part.expires_ms)
    else:
        found = timed_entries.entries_with_header(engine, timed_entries.adoption_of(meta))
    return (_Entry(timed_entries.application_key(key), key, _indexed(data)) for key, data in found)


def _unbegun(engine: Engine, expires_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a store in which no batch with a time to live has ended: their keys are the application's."""
    head = timed_entries.header(expires_ms, timed_entries.UNINDEXED)
    return ((timed_entries.engine_key(key), head + data) for key, data in engine.scan(None, None))


def _indexed(data: bytes) -> bytes:
    if data[timed_entries.HEADER - 1] != timed_entries.UNINDEXED:
        return data
    return (
        timed_entries.header(int.from_bytes(data[: timed_entries.HEADER - 1], "big"), 0) + data[timed_entries.HEADER :]
    )


def _targets(part: StorePart, place: Placement, after: int) -> Iterable[int]:
    if isinstance(place, CopiedPlacement):
        return range(after) if part.task == 0 else ()
    if not isinstance(place, StayingPlacement):
        return ()
    if part.task >= after:
        raise IncompatibleError(
            f"store `{part.store}` of task {part.task} has entries, which stay with their task, and there is no such "
            "task from now on. Nothing was changed"
        )
    return (part.task,)


def _by_key(part: StorePart, entries: Iterator[_Entry], place: ByKey, after: int) -> Iterator[tuple[int, _Entry]]:
    head = 0 if part.expires_ms is None else timed_entries.HEADER
    while block := list(islice(entries, _AT_ONCE)):
        shared = [entry for entry in block if entry.key in place.merges]
        for entry in shared:
            yield from ((task, entry) for task in range(after))
        own = [entry for entry in block if entry.key not in place.merges] if shared else block
        if place.by_value is None:
            keys = [place.find(entry.key) for entry in own]
        else:
            keys = [place.by_value(entry.key, entry.data[head:]) for entry in own]
        yield from _placed(part, own, pa.array(keys, pa.large_binary()), place, after)


def _placed(
    part: StorePart, entries: list[_Entry], keys: pa.Array, place: ByKey, after: int
) -> Iterable[tuple[int, _Entry]]:
    owners, targets = partitions_of(keys, place.before), partitions_of(keys, place.after)
    if place.keyless_of_task and keys.null_count:
        keyless = keys.is_null().to_numpy(zero_copy_only=False)
        owners[keyless] = targets[keyless] = part.task
    wrong = np.flatnonzero(owners != part.task)
    if len(wrong):
        first = int(wrong[0])
        if place.of_operator and not keys[first].is_valid:
            raise _of_whole_task(part)
        raise _misplaced(part, entries[first], int(owners[first]), of_operator=place.of_operator)
    return ((int(task), entry) for task, entry in zip(targets, entries, strict=True) if task < after)


def _of_whole_task(part: StorePart) -> IncompatibleError:
    operator, _, kind = part.store.rpartition(".")
    drop = argument("rules", [f"{part.store}=empty"])
    return IncompatibleError(
        f"store `{part.store}`: the {kind} of operator `{operator}` has entries without a key in task {part.task}, as "
        "an open window of a whole task has, and nothing says which task continues them. Drain the job, so that "
        f"nothing waits in the store, or drop what is in it with {drop}. Nothing was changed"
    )


def _misplaced(part: StorePart, entry: _Entry, owner: int, *, of_operator: bool) -> IncompatibleError:
    shown = printable(entry.key[:_SHOWN]) or repr(entry.key[:_SHOWN])
    found = (
        f"store `{part.store}`: the entry with the key `{shown}` is in task {part.task}, and messages of its key come "
        f"to task {owner}: "
    )
    if of_operator:
        drop = argument("rules", [f"{part.store}=empty"])
        return IncompatibleError(
            f"{found}the operator has entries under keys that are not those by which its messages came to the task. "
            f"Drain the job, so that nothing waits in the store, or drop what is in it with {drop}. Nothing was changed"
        )
    rule = argument("rules", [f"{part.store}=RULE"])
    return IncompatibleError(
        f"{found}its keys are not the keys of its messages, or not all of them. Say how the messages' key is found, or "
        f"what is to become of the entries, with {rule}. Nothing was changed"
    )


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
