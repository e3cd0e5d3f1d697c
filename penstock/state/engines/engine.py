"""The key-value engine, which holds a store's committed bytes, and net changes of a store.

A snapshot is the content of an engine at one moment, which can be read while the engine changes. Net changes are
written exactly as in Spark's changelog v1:

    | key length | key | value length | value |    lengths of 4 bytes, big-endian

A deleted key has the value length -1; -1 in place of a key length ends them.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from operator import countOf
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays.byte_arrays import ByteArray, write_at
from penstock.arrays.entries import Entries, Flags, KeyIndex
from penstock.errors import CorruptError
from penstock.metrics.snapshot import CounterValue, TimerValue

Changes: TypeAlias = Mapping[bytes, bytes | None]
"""Key to new value, None for a deleted key."""

_LENGTH = struct.Struct(">i")
_END = _LENGTH.pack(-1)
_LONGEST = 2**31 - 1
_ENCODE_AT_ONCE = 1024
_COLUMNS_AT_ONCE = 1 << 16
_PLAUSIBLE = 100
"""Data that compresses better than this is counted before its claimed size is believed."""
_COUNT_BYTES = 1 << 20
_FOURS = pa.py_buffer(np.arange(0, 4 * (_ENCODE_AT_ONCE + 1), 4, dtype=np.int64))


@cache
def _nothing() -> pa.Scalar:
    """An empty element. Made when first needed, because making it has pyarrow look for pandas."""
    return pa.scalar(b"", pa.large_binary())


def merged(first: Changes | None, second: Changes) -> Changes:
    """The changes of both; where both change a key, the second one counts. May change the first one, if it is a
    dict."""
    if first is None:
        return second
    if isinstance(first, dict):
        first.update(second)
        return first
    if isinstance(first, Entries) and isinstance(second, Entries):
        return Entries.last_of((first, second))
    return {**first, **second}


def without_passing(first: Changes | None, second: Changes) -> Changes:
    """As `merged`, for a store whose keys are written once: one that the first changes write, and the second ones
    delete, is in neither."""
    if first is None:
        return second
    if isinstance(first, Entries) and isinstance(second, Entries):
        return _entries_without_passing(first, second)
    found = first if isinstance(first, dict) else dict(first)
    for key, value in second.items():
        if value is not None or found.pop(key, None) is None:
            found[key] = value
    return found


def _entries_without_passing(first: Entries, second: Entries) -> Entries:
    written = KeyIndex()
    written.add(first.key_bytes.take(np.flatnonzero(first.present)))
    both = Entries.last_of((first, second))
    gone = np.flatnonzero(~both.present)
    passing = gone[written.find(both.key_bytes.take(gone)) >= 0]
    return both.take(np.setdiff1d(np.arange(len(both)), passing))


def changes_bytes(changes: Changes) -> int:
    if isinstance(changes, Entries):
        return changes.size
    return sum(map(len, changes)) + sum(map(len, filter(None, changes.values())))


def deletes_in(changes: Changes) -> int:
    if isinstance(changes, Entries):
        return changes.deletes
    empty = len(changes) - len(list(filter(None, changes.values())))
    return countOf(changes.values(), None) if empty else 0


def encode_records(changes: Changes) -> bytes:
    if isinstance(changes, Entries):
        return b"".join([*map(_encode_columns, changes.blocks(_COLUMNS_AT_ONCE)), _END])
    # Joined by Arrow, a thousand at a time: six tenths of what it costs to join the pieces of each record in Python.
    chunks: list[bytes | pa.Buffer] = []
    remaining, values = iter(changes), iter(changes.values())
    while some := list(islice(remaining, _ENCODE_AT_ONCE)):
        key = pa.array(some, pa.large_binary())
        value = pa.array(list(islice(values, len(some))), pa.large_binary())
        pieces = (_lengths(key), key, _lengths(value), pc.fill_null(value, _nothing()))
        chunks.append(pc.binary_join_element_wise(*pieces, _nothing()).buffers()[2])
    chunks.append(_END)
    return b"".join(chunks)


def _encode_columns(entries: Entries) -> bytes:
    keys, values = entries.key_bytes, entries.value_bytes
    if len(entries) and max(int(keys.lengths.max()), int(values.lengths.max())) > _LONGEST:
        raise ValueError(f"a key or value is too long to be kept; at most {_LONGEST} bytes")
    lengths = keys.lengths + values.lengths + 2 * _LENGTH.size
    starts = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.uint8)
    write_at(data, starts, ByteArray.matrix(keys.lengths.astype(">i4")))
    write_at(data, starts + _LENGTH.size, keys)
    behind = starts + _LENGTH.size + keys.lengths
    sizes = np.where(entries.present, values.lengths, -1)
    write_at(data, behind, ByteArray.matrix(sizes.astype(">i4")))
    write_at(data, behind + _LENGTH.size, values)
    return data.tobytes()


def decode_records(data: bytes, name: str) -> dict[bytes, bytes | None]:
    """Read records up to the end mark. Raises CorruptError if they break off or go on after it."""
    changes: dict[bytes, bytes | None] = {}
    unpack, position, end = _LENGTH.unpack_from, 0, len(data)
    try:
        while (key_length := unpack(data, position)[0]) >= 0:
            position += 4 + key_length
            key = data[position - key_length : position]
            value_length = unpack(data, position)[0]
            position += 4
            if value_length < 0:
                changes[key] = None
                continue
            position += value_length
            changes[key] = data[position - value_length : position]
    except struct.error as error:
        raise CorruptError(f"the records of `{name}` break off at byte {position} of {end}") from error
    if position + 4 != end:
        raise CorruptError(f"the records of `{name}` end at byte {position + 4}, the file at {end}")
    return changes


def compress(data: bytes) -> bytes:
    compressed: bytes = pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)
    return compressed


def decompress(data: bytes, size: int, what: str) -> bytes:
    """The `size` bytes that `compress` was given. Memory for them is allocated once the size is plausible.

    Raises CorruptError, which begins with `what`.
    """
    try:
        if size > _PLAUSIBLE * len(data) and size != _decompressed_size(data):
            raise CorruptError(f"{what} is damaged: it claims {size} bytes, which are not there")
        return cast("bytes", pa.Codec("zstd").decompress(data, decompressed_size=size, asbytes=True))
    except (OSError, pa.ArrowException) as error:  # Arrow's word for what zstd cannot read: no file is involved
        raise CorruptError(f"{what} is damaged: {error}") from error


def _decompressed_size(data: bytes) -> int:
    """Decompress everything, a piece at a time, to count it."""
    total, piece = 0, bytearray(_COUNT_BYTES)  # Arrow keeps the memory of a `read` that fails
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while count := stream.readinto(piece):
            total += count
    return total


def _lengths(column: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """The length of each element, packed; -1 for a missing one."""
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy()
    if lengths.max() > _LONGEST:
        raise ValueError(f"a key or value of {lengths.max()} bytes is too long to be kept; at most {_LONGEST} bytes")
    lengths = lengths.astype(">i4")
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), [None, _FOURS, pa.py_buffer(lengths)])


class EngineFailedError(BaseException):
    """An engine failed: its files are damaged, the disk does not answer, it was closed. The state has to be restored.

    Not an Exception, because it travels up through the code of tasks, whose own `except Exception` must not swallow it.
    """


class Content(Protocol):
    """Bytes by key, to be read: an engine, an overlay above one, or what a layer shows of one."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def scan(self, start: bytes | None, end: bytes | None, /) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they are now."""


class EngineMoment(Protocol):
    """The content of an engine at one moment, key by key."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def release(self) -> None:
        """To be called before the engine is closed. Idempotent."""


def get_each(content: Content, keys: ByteArray) -> tuple[ByteArray, Flags]:
    """As `Engine.get_many`, one key at a time."""
    return found_in([content.get(key) for key in keys.to_arrow().to_pylist()])


def found_in(values: list[bytes | None]) -> tuple[ByteArray, Flags]:
    """The result of `Engine.get_many`, of a value for each key."""
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return ByteArray.of_list([value or b"" for value in values]), present


class Engine(ABC):
    """A map of bytes ordered by unsigned bytes. It changes only through `apply`."""

    @property
    def has_failed(self) -> bool:
        """True once a read or a write has failed: its content is not to be trusted."""
        return False

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """The value of each key, empty where there is none; and where there is one."""
        return get_each(self, keys)

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Make the changes, all or none as readers in this process see them."""

    def load(self, changes: Changes) -> None:
        """As `apply`, for a restore: many changes at once, and nobody reads meanwhile."""
        self.apply(changes)

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they were when the scan began."""

    @abstractmethod
    def copy_to(self, directory: Path) -> None:
        """Make the directory, which must not exist, with files that hold the present content. The cost does not grow
        with the state if the engine keeps immutable files: those are linked."""

    def moment(self) -> EngineMoment | None:
        """The present content, which later changes do not change; None if the engine cannot keep it."""
        return None

    def statistics(self) -> dict[str, int]:
        """The engine's gauges by name, for metrics: `keys` is roughly the number of keys. Any thread may call it; empty
        once the engine is closed."""
        return {}

    def measurements(self) -> dict[str, CounterValue | TimerValue]:
        """The counters and timers since the engine was opened, by name, for metrics. Any thread may call it; after
        `close`, the last values."""
        return {}

    def measure_anew(self) -> None:  # noqa: B027 - most measure nothing
        """Begin the measurements again: the engine stays open for another epoch, and those of this one were added
        up."""

    @abstractmethod
    def close(self) -> None:
        """Release the engine. Only `statistics` and `measurements` may be called after it."""


class EngineSnapshot(ABC):
    """The content of an engine at one moment. Any thread may read it; the engine's owner may release it meanwhile."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value, or None if the key was absent. Raises EngineFailedError once the snapshot is released."""

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order. Raises EngineFailedError once the snapshot
        is released, in the middle of a scan as well."""

    @abstractmethod
    def release(self) -> None:
        """Idempotent."""


def released() -> EngineFailedError:
    return EngineFailedError("the view that is read was released: the batch for which it was taken has ended")
