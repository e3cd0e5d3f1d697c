"""The content of a side store on a host: its entries, and the positions that they are made from.

Positions say how far each partition was read, and from which streams. They are JSON with a format number, under one
reserved key after all others. They are written in one step with the entries, so they never disagree with them.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import Count, decode_format, decoding
from penstock.errors import CorruptError, RetryableError, SerdeError
from penstock.state.engines.engine import EngineFailedError, EngineSnapshot
from penstock.state.engines.memory import MemoryEngine
from penstock.state.engines.rocksdb import RocksDbEngine, engine_error
from penstock.state.stores.task_store import SideView

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SidePositions:
    """The offsets that a side store's content was read up to."""

    next_offsets: Mapping[SystemStreamPartition, int] = field(default_factory=dict)
    """Includes the partitions that never had a message."""
    identities: Mapping[SystemStream, str | None] = field(default_factory=dict)
    """Distinguishes a stream from an earlier one of its name (`SystemAdmin.stream_identity`)."""
    fingerprint: str = ""
    """The fingerprint of everything else that made the content: streams, serdes, processor."""
    complete: bool = False
    """True if the content was caught up once."""
    updated_ms: int = 0
    """The latest time at which it was known to be up to date, in epoch milliseconds."""

    def moved(self, next_offsets: Mapping[SystemStreamPartition, int], updated_ms: int) -> SidePositions:
        """The positions after more was read. Partitions that are not in `next_offsets` stay."""
        return replace(self, next_offsets={**self.next_offsets, **next_offsets}, updated_ms=updated_ms)


class _WrittenPositions(Struct):
    format: Count
    next: dict[str, Count]
    identities: dict[str, str | None]
    fingerprint: str
    complete: bool
    updated_ms: Count


def encode_positions(positions: SidePositions) -> bytes:
    return orjson.dumps(
        {
            "format": _FORMAT,
            "next": {str(ssp): offset for ssp, offset in positions.next_offsets.items()},
            "identities": {str(stream): identity for stream, identity in positions.identities.items()},
            "fingerprint": positions.fingerprint,
            "complete": positions.complete,
            "updated_ms": positions.updated_ms,
        }
    )


def decode_positions(data: bytes, place: str) -> SidePositions:
    """Decode positions.

    Raises:
        CorruptError: they are damaged.
        IncompatibleError: a newer Penstock wrote them.
    """
    what = f"the positions of the side store in `{place}` are damaged"
    written = decode_format(_WrittenPositions, data, what, f"the side store in `{place}`", _FORMAT)
    with decoding(what):
        return SidePositions(
            {SystemStreamPartition.parse(ssp): offset for ssp, offset in written.next.items()},
            {SystemStream.parse(stream): identity for stream, identity in written.identities.items()},
            written.fingerprint,
            written.complete,
            written.updated_ms,
        )


RESERVED = b"\xff" * 16
"""Keys with this prefix are not the user's."""
POSITIONS_KEY = RESERVED + b"positions"
MOST_KEYS = 50_000
_contents = count(1)
"""Numbers the engines of this process: the version of one's view says nothing about another's."""


class ChangedKeys:
    """The keys of the latest writes, so that a cache drops only those. Not thread-safe."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self.version = 0
        self._most = most_keys
        self._writes: deque[Collection[bytes]] = deque()
        """The keys of the latest writes, the newest at the right."""
        self._keys = 0

    def add(self, keys: Collection[bytes]) -> None:
        self.version += 1
        self._writes.append(keys)
        self._keys += len(keys)
        while self._keys > self._most:
            self._keys -= len(self._writes.popleft())

    def forget(self) -> None:
        """Count a write of many keys, and forget all keys."""
        self.version += 1
        self._writes.clear()
        self._keys = 0

    def since(self, version: int) -> Iterable[bytes] | None:
        """The keys written after a version; None if they are no longer known."""
        missing = self.version - version
        if missing > len(self._writes):
            return None
        return list(chain.from_iterable(list(self._writes)[len(self._writes) - missing :]))


class SideEngine:
    """A store that one thread writes and others read through views.

    Entries and positions are written in one step. Flushed content survives the process. After a crash without a
    flush, entries and positions are both those of some earlier moment, because RocksDB's memory tables become files
    as a whole and in order.
    """

    def __init__(self, engine: RocksDbEngine | MemoryEngine, place: str, damaged: Callable[[], None] | None = None):
        """Wrap an engine, which `close` closes.

        Args:
            place: its name in errors, such as its folder.
            damaged: called when its files turn out to be damaged, before that is raised. Any thread may call it.

        Raises:
            CorruptError: its positions are damaged.
            IncompatibleError: a newer Penstock wrote it.
        """
        self._engine = engine
        self._place = place
        self._damaged = damaged or (lambda: None)
        self._lock = threading.Lock()
        self._number = next(_contents)
        self._changed = ChangedKeys()
        self._open: weakref.WeakSet[EngineSnapshot] = weakref.WeakSet()
        self._closed = False
        self._compacts = True
        with self._reading():
            written = engine.get(POSITIONS_KEY)
            self._positions = SidePositions() if written is None else decode_positions(written, place)

    @property
    def positions(self) -> SidePositions:
        """The positions of the newest content; `SidePositions()` if nothing was ever written."""
        return self._positions

    @property
    def version(self) -> tuple[int, int]:
        """The version that a view taken now would have."""
        return self._number, self._changed.version

    def write(self, entries: Mapping[bytes, bytes | None], positions: SidePositions) -> None:
        """Write entries and positions. Readers and a crash see all or none of them.

        Args:
            entries: new values by key; None deletes. If there are none, only the positions are written.
            positions: those of the content with the entries.

        Raises:
            SerdeError: a key is reserved.
            PenstockError: the engine cannot write; says what to do. CorruptError if it is damaged.
        """
        if entries:
            check_key(max(entries))
        self._compact(True)
        self._write(self._engine.apply, entries, positions, tuple(entries))

    def load(self, entries: Mapping[bytes, bytes | None], positions: SidePositions) -> None:
        """As `write`, for many entries at once, in one sorted file. Caches of earlier reads are dropped as a whole.
        Files are not merged until the positions are complete, or `write` is called."""
        if entries:
            check_key(max(entries))
        self._compact(positions.complete)
        self._write(self._engine.load, entries, positions, None)

    def _compact(self, wanted: bool) -> None:
        if wanted != self._compacts:
            with self._writing():
                self._engine.compact_in_background(wanted)
            self._compacts = wanted

    def _write(
        self,
        write: Callable[[Mapping[bytes, bytes | None]], None],
        entries: Mapping[bytes, bytes | None],
        positions: SidePositions,
        keys: Collection[bytes] | None,
    ) -> None:
        changes = {**entries, POSITIONS_KEY: encode_positions(positions)}
        with self._lock, self._writing():
            write(changes)
            self._positions = positions
            if keys is None:
                self._changed.forget()
            elif keys:
                self._changed.add(keys)

    def get(self, key: bytes) -> bytes | None:
        """The newest value of a key. For the thread that writes."""
        if key >= RESERVED:
            return None
        with self._reading():
            return self._engine.get(key)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The newest entries with start <= key < end (None: unbounded), in order, as they are now."""
        snapshot = self._engine.snapshot()
        self._open.add(snapshot)  # a close ends the scan, which would keep the files open
        return self._entries(snapshot, start, end)

    def _entries(
        self, snapshot: EngineSnapshot, start: bytes | None, end: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._reading():
            yield from snapshot.scan(start, _bounded(end))

    def view(self) -> SideView:
        """The present content, whatever is written later. Release the view: it keeps files, or replaced values."""
        with self._lock:
            snapshot = self._engine.snapshot()
            self._open.add(snapshot)
            return _View(self, snapshot, self.version)

    def changed_between(self, older: tuple[int, int], newer: tuple[int, int]) -> Iterable[bytes] | None:
        """The keys that may have other values in a newer view than in an older one; None: any key may."""
        if older == newer:
            return ()
        if older[0] != self._number or older > newer:
            return None
        with self._lock:
            return self._changed.since(older[1])

    def flush(self) -> None:
        """Make everything written survive this process."""
        with self._writing():
            self._engine.flush()

    def copy_to(self, directory: Path) -> None:
        """Copy the content of one moment into a new folder, by links where the engine has files. May be called by
        any thread."""
        with self._writing():
            self._engine.copy_to(directory)

    def statistics(self) -> dict[str, int]:
        """The engine's statistics; `keys` is an estimate of the number of entries. May be called by any thread."""
        found = self._engine.statistics()
        return {**found, "keys": max(0, found["keys"] - 1)} if found else found

    def close(self, *, flush: bool = True) -> None:
        """Release all views, flush, and let go of the files. Idempotent.

        Args:
            flush: True if the content is to survive this process.
        """
        if self._closed:
            return
        for snapshot in list(self._open):
            snapshot.release()
        self._closed = True
        try:
            if flush:
                with self._writing():
                    self._engine.flush()
        finally:
            self._engine.close()

    def failed(self, error: Exception) -> Exception:
        """The error to raise for an error of the engine. Damage of its files is reported to `damaged` first."""
        if type(error) is Exception:  # how the binding raises what RocksDB says
            if self._closed:
                return RetryableError(f"the side store in `{self._place}` was closed")
            error = engine_error(error, f"the side store in `{self._place}` failed")
        if isinstance(error, CorruptError) or os.strerror(errno.EIO) in str(error):
            self._damaged()
        return error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self.failed(error) from error

    _writing = _reading


class _View(SideView):
    """A snapshot of the engine without the reserved keys."""

    def __init__(self, content: SideEngine, snapshot: EngineSnapshot, version: tuple[int, int]) -> None:
        self._content = content
        self._snapshot = snapshot
        self._get = snapshot.get
        self._version = version

    @property
    def version(self) -> tuple[int, int]:
        return self._version

    def changed_since(self, version: tuple[int, int]) -> Iterable[bytes] | None:
        return self._content.changed_between(version, self._version)

    def get(self, key: bytes) -> bytes | None:
        if key >= RESERVED:
            return None
        try:
            return self._get(key)
        except Exception as error:
            raise EngineFailedError(str(self._content.failed(error))) from error

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self._snapshot.scan(start, _bounded(end))
        except Exception as error:
            raise EngineFailedError(str(self._content.failed(error))) from error

    def statistics(self) -> dict[str, int]:
        return self._content.statistics()

    def release(self) -> None:
        self._snapshot.release()


def _bounded(end: bytes | None) -> bytes:
    return RESERVED if end is None or end > RESERVED else end


def check_key(largest: bytes) -> None:
    """Raise SerdeError if a key, the largest of several, is reserved."""
    if largest >= RESERVED:
        raise SerdeError(
            f"a side store cannot have the key {largest[:40]!r}{'...' if len(largest) > 40 else ''}: keys that begin "
            f"with {len(RESERVED)} bytes 0xff are reserved for the store's positions. Choose another serde for the keys"
        )
