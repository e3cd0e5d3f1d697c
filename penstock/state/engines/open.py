"""Folders of engines, and the engine over one: of the configured kind, or the kind whose files are there.

A container puts another engine over it, whose writes are visible at once and written later: gathered over batches, then
beside the next ones. State becomes durable by the commit, which takes the same changes from memory, so nothing depends
on when RocksDB has them. A key that changes in every batch is written once for many. A failed write is raised at the
next one; until then reads stay right, because the unwritten changes are still here.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.config.settings import EngineKind, StoreSettings
from penstock.errors import CorruptError, PenstockError, PenstockTimeoutError
from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.engines.engine import Changes, Engine, EngineMoment, changes_bytes
from penstock.state.engines.memory import ENTRIES, ColumnEngine, ColumnLimit, MemoryEngine
from penstock.state.engines.overlay import Gaps, Overlay
from penstock.state.engines.rocksdb import RocksDbEngine

_CHUNK_BYTES = 8 << 20
"""The amount held in memory while a store is copied from one kind of engine into the other."""


def make_empty(directory: Path) -> None:
    """Make an empty folder in the place of whatever was there. Raises OSError if the old one cannot be removed: nothing
    may be restored over it."""
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
    directory.mkdir(parents=True)


def open_engine(settings: StoreSettings, directory: Path, *, read_only: bool = False) -> Engine:
    """The configured engine of a store, over a folder: a new one, or the content that a restore or copy has put there.
    Raises CorruptError if the folder's files are damaged, or of the other kind of engine."""
    if _of_the_other_kind(settings, directory).exists():
        raise CorruptError(
            f"`{directory}` holds the files of another kind of store than stores.{settings.name}.factory="
            f"{settings.factory}. Set it back, or restore from a changelog backend, which fits both"
        )
    if settings.factory == "memory":
        return MemoryEngine(directory)
    if settings.factory == "columns":
        return ColumnEngine(directory, ColumnLimit(settings.name, settings.columns_max_bytes))
    return open_rocksdb(settings, directory, read_only=read_only)


def open_rocksdb(settings: StoreSettings, directory: Path, *, read_only: bool = False) -> RocksDbEngine:
    return RocksDbEngine(
        directory,
        block_cache_bytes=settings.rocksdb_block_cache_bytes,
        write_buffer_bytes=settings.rocksdb_write_buffer_bytes,
        total_bytes=settings.all_memory_bytes,
        read_only=read_only,
    )


def open_restored(settings: StoreSettings, directory: Path) -> Engine:
    """The configured engine of a store, over a folder that a restore has filled. Files of the other kind, from before
    `stores.<name>.factory` was changed, are read into a new engine.

    Raises:
        CorruptError: the files are damaged.
    """
    if not _of_the_other_kind(settings, directory).exists():
        return open_engine(settings, directory)
    source_directory = directory.with_name(f"{directory.name}.other")
    shutil.rmtree(source_directory, ignore_errors=True)
    directory.rename(source_directory)
    try:
        with closing(open_whatever(settings, source_directory)) as source:
            engine = open_engine(settings, directory)
            try:
                for entries in _chunks(source.scan(None, None)):
                    engine.load(entries)
            except BaseException:
                engine.close()
                raise
    finally:
        shutil.rmtree(source_directory, ignore_errors=True)
    return engine


def _of_the_other_kind(settings: StoreSettings, directory: Path) -> Path:
    """A file that only the kind of engine has that is not configured."""
    return directory / (ENTRIES if settings.factory == "rocksdb" else "CURRENT")


def _chunks(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[Changes]:
    chunk: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in entries:
        chunk[key] = value
        size += len(key) + len(value)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk


def open_whatever(settings: StoreSettings, directory: Path) -> Engine:
    """The engine whose files are in the folder, whatever the configuration says; a new one if there are none."""
    in_memory = (directory / ENTRIES).exists()
    if in_memory == (settings.factory != "rocksdb"):
        return open_engine(settings, directory)
    kind: EngineKind = "memory" if in_memory else "rocksdb"
    return open_engine(settings.put(StoreSettings.factory, kind), directory)


_ENTRY_BYTES = 150
"""The approximate memory of an entry besides the bytes of its key and value."""
_AT_ONCE = 500
"""Changes written at once: RocksDB's binding lets no other Python thread run meanwhile."""
_NOTED_BYTES = 100
"""The approximate memory of a changed key that is noted for a mark."""


@dataclass(slots=True, eq=False)
class EngineMark:
    """A content that the engine can go back to: the changes that were gathered, the engine below them as it was, and
    the keys that were changed since."""

    above: Changes
    below: EngineMoment
    writes: int
    """The number of writes below that had begun."""
    most_changed: int
    changed: set[bytes] = field(default_factory=set)
    is_lost: bool = False
    """True once more than `most_changed` keys were changed: nobody can go back any more."""


class WriteBehindEngine(Engine):
    """Gathers changes above an engine until a thread writes all of them. All other calls go to the engine."""

    def __init__(self, engine: Engine, writer: Executor, gather_bytes: int) -> None:
        """The changes are written once they take more than `gather_bytes` of memory."""
        self._engine = engine
        self._writer = writer
        self._gather_bytes = gather_bytes
        self._lock = threading.RLock()
        """Guards the overlay's changes and their order: an attempt that was given up may still be scanning."""
        self._gaps = Gaps()
        """The gaps in all that readers see, so they outlive the gathered changes."""
        self._above = Overlay(engine, self._gaps, self._lock)
        """The changes gathered or being written. They go only once all of them can be read below."""
        self._written: Future[None] | None = None
        self._applied = self._applied_bytes = 0
        """Entries given to `apply` so far, and their bytes: for the average size of an entry."""
        self._writes = 0
        """The number of writes that have begun."""
        self._marks: list[EngineMark] = []

    def get(self, key: bytes) -> bytes | None:
        return self._above.get(key)

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        return self._above.get_many(keys)

    def apply(self, changes: Changes) -> None:
        """Make the changes visible. Waits for a write under way.

        Raises the error of the write before: then none of these changes was taken.
        """
        self._await_write()
        self._note(changes)
        with self._lock:
            self._above.update(changes)
        self._applied += len(changes)
        self._applied_bytes += changes_bytes(changes)
        if self._bytes_above() > self._gather_bytes:
            self._begin_write()

    def _bytes_above(self) -> float:
        return len(self._above.changes) * (_ENTRY_BYTES + self._applied_bytes / max(1, self._applied))

    def _begin_write(self) -> None:
        self._writes += 1
        self._written = self._writer.submit(self._write)

    def _write(self) -> None:
        self._write_below(self._above.changes)
        self._above = Overlay(self._engine, self._gaps, self._lock)

    def _write_below(self, changes: Changes, deadline: float | None = None) -> None:
        items = iter(changes.items())
        while part := dict(islice(items, _AT_ONCE)):
            self._engine.apply(part)
            time.sleep(0)
            if deadline is not None and time.monotonic() > deadline:
                raise PenstockTimeoutError("going back takes too long")

    def _await_write(self) -> None:
        if self._written is not None:
            self._written.result()

    def settle(self) -> None:
        """Wait until everything is written. Raises the error of a write."""
        self._await_write()
        if self._above.changes:
            self._begin_write()
            self._await_write()

    @property
    def gathered(self) -> int:
        """The number of changes that are gathered or being written."""
        return len(self._above.changes)

    def mark(self, most_bytes: int) -> EngineMark | None:
        """Remember the present content, to go back to it. Not called while changes are applied. It costs a copy of what
        is gathered, and later changes note their keys, until it is released. Each of the two may take `most_bytes` of
        memory. None if the first takes more, or if the engine below cannot remember its content."""
        if self._bytes_above() > most_bytes:
            return None
        gathered = dict(self._above.changes)  # first: a write that ends now takes them away, and is below then
        below = self._engine.moment()
        if below is None:
            return None
        mark = EngineMark(gathered, below, self._writes, most_bytes // _NOTED_BYTES)
        self._marks.append(mark)
        return mark

    def _note(self, changes: Changes) -> None:
        for mark in tuple(self._marks):
            mark.changed.update(changes)
            if len(mark.changed) > mark.most_changed:
                mark.is_lost = True
                mark.changed, mark.above = set(), {}
                self.release(mark)

    def release(self, mark: EngineMark) -> None:
        """Forget a content. Idempotent."""
        with self._lock:
            if mark in self._marks:
                self._marks.remove(mark)
                mark.below.release()

    def go_back(self, mark: EngineMark, deadline: float) -> Engine:
        """The engine below, with exactly the content that was marked. It belongs to the caller, and this engine is of
        no use any more. Nobody applies changes meanwhile.

        Raises PenstockTimeoutError if that takes longer than until `deadline` (monotonic), PenstockError if the mark is
        lost, and the error of a write. Then nobody knows what the engine holds.
        """
        self._await_write()
        if mark.is_lost:
            raise PenstockError("too many of its keys have changed")
        if self._writes > mark.writes:
            keys = iter(mark.changed.difference(mark.above))
            while part := list(islice(keys, _AT_ONCE)):
                self._write_below({key: mark.below.get(key) for key in part}, deadline)
        self._write_below(mark.above, deadline)
        self._release_marks()
        return self._engine

    @property
    def has_failed(self) -> bool:
        return self._engine.has_failed

    def _release_marks(self) -> None:
        for mark in self._marks:
            mark.below.release()
        self._marks = []

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._above.scan(start, end)

    def copy_to(self, directory: Path) -> None:
        self.settle()
        self._engine.copy_to(directory)

    def statistics(self) -> dict[str, int]:
        """As of the engine below, but `keys` is at least the number of keys that are gathered and not written yet: how
        many of these are below as well, nobody knows without reading them."""
        found = self._engine.statistics()
        if "keys" not in found:
            return found
        with self._lock:
            values = list(self._above.changes.values())
        return {**found, "keys": max(found["keys"], len(values) - values.count(None))}

    def measurements(self) -> dict[str, CounterValue | TimerValue]:
        return self._engine.measurements()

    def close(self) -> None:
        """Wait for the write under way, even if it fails. Gathered changes are given up."""
        if self._written is not None:
            self._written.exception()
        self._release_marks()
        self._engine.close()
