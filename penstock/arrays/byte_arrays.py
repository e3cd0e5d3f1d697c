"""Many byte strings at once: Arrow arrays of them as numpy sees them, and a heap that keeps them in one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

_LEAST_ROOM = 1 << 12


class ByteArray:
    """Byte strings: element i is `data[starts[i] : starts[i] + lengths[i]]`."""

    __slots__ = ("_lengths", "_width", "data", "starts")

    def __init__(self, data: Bytes, starts: Integers, lengths: Integers | None, width: int | None = None) -> None:
        """`width` in place of `lengths`: all elements are so long."""
        self.data = data
        self.starts = starts
        self._lengths = lengths
        self._width = width

    @property
    def lengths(self) -> Integers:
        if self._lengths is None:
            self._lengths = np.full(len(self.starts), self._width or 0, np.int64)
        return self._lengths

    @property
    def width(self) -> int | None:
        """The length of all elements, if they have the same one; None if there are none."""
        if self._width is None and len(self.starts):
            first = int(self.lengths[0])
            if (self.lengths == first).all():
                self._width = first
        return self._width

    @classmethod
    def of(cls, array: pa.Array) -> ByteArray:
        """The elements of an Arrow array of bytes or text, sliced or not; a null is empty."""
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, offsets, data = array.buffers()
        count = len(array)
        bounds: Any = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + count + 1]
        bounds = bounds.astype(np.int64) if count else np.zeros(1, np.int64)
        raw = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return cls(raw, bounds[:-1], np.diff(bounds))

    @classmethod
    def matrix(cls, rows: npt.NDArray[Any]) -> ByteArray:
        """The rows of a matrix of bytes, or the elements of an array of fixed size."""
        count = len(rows)
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        width = len(data) // count if count else 0
        return cls(data, np.arange(count, dtype=np.int64) * width, None, width)

    @classmethod
    def concat(cls, parts: Sequence[ByteArray]) -> ByteArray:
        data = np.concatenate([part.joined() for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(data, np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def behind(cls, heads: Bytes, tails: ByteArray) -> ByteArray:
        """Each row of a matrix, and an element behind it."""
        size = heads.shape[1]
        lengths = tails.lengths + size
        starts = np.cumsum(lengths) - lengths
        data = np.empty(int(lengths.sum()), np.uint8)
        write_at(data, starts, cls.matrix(heads))
        write_at(data, starts + size, tails)
        return cls(data, starts, lengths)

    @classmethod
    def of_list(cls, elements: Sequence[bytes]) -> ByteArray:
        return cls.of(pa.array(elements, pa.large_binary()))

    @classmethod
    def empty(cls, count: int) -> ByteArray:
        """Elements without bytes."""
        return cls(np.zeros(0, np.uint8), np.zeros(count, np.int64), None, 0)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.data[start : start + int(self.lengths[index])].tobytes()

    @property
    def size(self) -> int:
        """The bytes of all elements together."""
        return int(self.lengths.sum()) if self._width is None else self._width * len(self.starts)

    def take(self, indices: npt.NDArray[Any]) -> ByteArray:
        if self._width is not None:
            return ByteArray(self.data, self.starts[indices], None, self._width)
        return ByteArray(self.data, self.starts[indices], self.lengths[indices])

    def slice(self, part: slice) -> ByteArray:
        if self._width is not None:
            return ByteArray(self.data, self.starts[part], None, self._width)
        return ByteArray(self.data, self.starts[part], self.lengths[part])

    def rows(self, width: int) -> Bytes:
        """A matrix with the first bytes of each element; all of them have at least so many."""
        if width == 0 or len(self.starts) == 0:
            return np.zeros((len(self.starts), width), np.uint8)
        items: Bytes = at_every_byte(self.data, width)[self.starts].view(np.uint8).reshape(-1, width)
        return items

    def joined(self) -> Bytes:
        """All elements, one after the other."""
        if len(self.starts) == 0:
            return np.zeros(0, np.uint8)
        width = self.width
        if width is not None:
            if self._is_contiguous():
                return self.data[int(self.starts[0]) : int(self.starts[0]) + self.size]
            return self.rows(width).reshape(-1)
        return self.data[each_byte(self.starts, self.lengths)]

    def _is_contiguous(self) -> bool:
        return bool((np.diff(self.starts) == self.lengths[:-1]).all())

    def to_arrow(self, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """The elements as Arrow's binary, or large binary if they are too many bytes; where `valid` is false, null."""
        bounds = np.zeros(len(self.starts) + 1, np.int64)
        np.cumsum(self.lengths, out=bounds[1:])
        wide = int(bounds[-1]) > np.iinfo(np.int32).max
        mask = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [mask, pa.py_buffer(bounds if wide else bounds.astype(np.int32)), pa.py_buffer(self.joined())]
        return pa.Array.from_buffers(pa.large_binary() if wide else pa.binary(), len(self.starts), buffers)

    def copied(self) -> ByteArray:
        """The same elements, in memory of their own."""
        data = self.joined()
        own = data.copy() if data.base is not None else data
        if (width := self.width) is not None:
            return ByteArray(own, np.arange(len(self.starts), dtype=np.int64) * width, None, width)
        return ByteArray(own, np.cumsum(self.lengths) - self.lengths, self.lengths)

    def equal(self, other: ByteArray) -> npt.NDArray[np.bool_]:
        """Element by element: True where both have the same bytes."""
        width = self.width
        if width is not None and width == other.width:
            return _equal_words(self, other, width)
        same: npt.NDArray[np.bool_] = self.lengths == other.lengths
        for width in np.unique(self.lengths[same]).tolist():
            where = np.flatnonzero(same & (self.lengths == width))
            same[where] = _equal_words(self.take(where), other.take(where), width)
        return same


def _equal_words(one: ByteArray, other: ByteArray, width: int) -> npt.NDArray[np.bool_]:
    """As `ByteArray.equal`, for elements of this length: words of eight bytes are compared, the last two of which may
    overlap."""
    if width < 8:
        differ: npt.NDArray[np.bool_] = (one.rows(width) != other.rows(width)).any(axis=1)
        return ~differ
    same = np.ones(len(one), np.bool_)
    mine, theirs = _words_at_every_byte(one.data), _words_at_every_byte(other.data)
    for begin in (*range(0, width - 8, 8), width - 8):
        same &= mine[one.starts + begin] == theirs[other.starts + begin]
    return same


def _words_at_every_byte(data: Bytes) -> npt.NDArray[np.uint64]:
    return np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))


def at_every_byte(data: Bytes, width: int) -> npt.NDArray[Any]:
    """A view of the data as items of `width` bytes that begin at every byte; each is copied as one."""
    return np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))


def each_byte(starts: Integers, lengths: Integers) -> Integers:
    """The place of every byte of every element."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Integers = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return places


def write_at(data: Bytes, starts: Integers, elements: ByteArray) -> None:
    """Write the bytes of each element into `data`, at its place."""
    width = elements.width
    if width:
        at_every_byte(data, width)[starts] = elements.rows(width).view(f"V{width}").reshape(-1)
    elif width is None and len(starts):
        data[each_byte(starts, elements.lengths)] = elements.joined()


class Heap:
    """Byte strings in one block of memory, by number. An element that is replaced by one of the same length stays in
    its place; another one is added at the end, and its old bytes are garbage.

    As long as all have the same length, their places follow from their numbers, and are not kept.
    """

    def __init__(self) -> None:
        self._data = np.zeros(_LEAST_ROOM, np.uint8)
        self._used = 0
        self._garbage = 0
        self._width: int | None = None
        """The length of all elements; None if there are none, or they differ."""
        self._starts = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)
        self.count = 0

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._data.nbytes + self._starts.nbytes + self._lengths.nbytes

    def all(self) -> ByteArray:
        return self.take(np.arange(self.count))

    def take(self, numbers: npt.NDArray[Any]) -> ByteArray:
        if self._width is not None:
            return ByteArray(self._data, numbers * self._width, None, self._width)
        return ByteArray(self._data, self._starts[numbers], self._lengths[numbers])

    def get(self, number: int) -> bytes:
        if self._width is not None:
            return self._data[number * self._width : (number + 1) * self._width].tobytes()
        start = int(self._starts[number])
        return self._data[start : start + int(self._lengths[number])].tobytes()

    def add(self, elements: ByteArray) -> None:
        """Add elements; they get the next numbers."""
        count = len(elements)
        if count == 0:
            return
        if self.count == 0:
            self._used, self._width = 0, elements.width
        elif self._width is not None and self._width != elements.width:
            self._note_places()
        places = self._place(elements)
        if self._width is None:
            self._starts = with_room(self._starts, self.count, count)
            self._lengths = with_room(self._lengths, self.count, count)
            numbers = slice(self.count, self.count + count)
            self._starts[numbers] = places
            self._lengths[numbers] = elements.lengths
        self.count += count

    def _note_places(self) -> None:
        """From now on lengths differ."""
        width = self._width or 0
        self._starts = np.arange(self.count, dtype=np.int64) * width
        self._lengths = np.full(self.count, width, np.int64)
        self._width = None

    def put(self, numbers: npt.NDArray[Any], elements: ByteArray) -> None:
        """Replace elements; no number occurs twice."""
        if self._width is not None:
            if len(elements) == 0 or elements.width == self._width:
                write_at(self._data, numbers * self._width, elements)
                return
            self._note_places()
        before = self._lengths[numbers]
        same = before == elements.lengths
        if same.all():
            write_at(self._data, self._starts[numbers], elements)
            return
        here, others = np.flatnonzero(same), np.flatnonzero(~same)
        write_at(self._data, self._starts[numbers[here]], elements.take(here))
        moved = elements.take(others)
        self._garbage += int(before[others].sum())
        self._starts[numbers[others]] = self._place(moved)
        self._lengths[numbers[others]] = moved.lengths
        if self._garbage > _LEAST_ROOM and 2 * self._garbage > self._used:
            self._compact()

    def _place(self, elements: ByteArray) -> Integers:
        """Append the bytes; returns where each element begins."""
        size = elements.size
        self._data = with_room(self._data, self._used, size)
        begin = self._used
        self._data[begin : begin + size] = elements.joined()
        self._used += size
        lengths = elements.lengths
        ends: Integers = np.cumsum(lengths)
        return ends - lengths + begin

    def _compact(self) -> None:
        kept = self.all()
        data = kept.joined()
        ends: Integers = np.cumsum(kept.lengths)
        self._starts[: self.count] = ends - kept.lengths
        self._used, self._garbage = len(data), 0
        self._data = with_room(np.array(data, np.uint8), self._used, _LEAST_ROOM)


def with_room(array: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """The array, or a longer copy of its used part, with room for more elements."""
    needed = used + more
    if needed <= len(array):
        return array
    longer = np.zeros(max(needed, len(array) + len(array) // 2), array.dtype)
    longer[:used] = array[:used]
    return longer
