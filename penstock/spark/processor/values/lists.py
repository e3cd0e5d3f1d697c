"""Lists of rows in a store: short ones in one entry, long ones in pieces, so that appending does not rewrite them.

    key              its head: the number of the first piece and of the one behind the last, then the newest elements
    key, number      a piece: elements

An element is its length in four bytes and its bytes. In a store with a time to live the batch time at which it expires
comes before, in eight bytes: the store's own time to live drops a piece once its last element has expired.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from penstock.api.state.store import KeyValueStore

PIECE_BYTES = 8_192
"""Elements become a piece once they have this many bytes."""
_HEAD = struct.Struct("<II")
_NUMBER = struct.Struct(">I")
_LENGTH = struct.Struct("<I")
_TIMED = struct.Struct("<qI")


class StoredLists:
    """The lists of all keys."""

    def __init__(
        self, store: KeyValueStore[bytes, bytes], ttl_ms: int | None = None, now: Callable[[], int] = lambda: 0
    ) -> None:
        """`now` is the batch time, in epoch milliseconds."""
        self._store, self._read, self._write = store, store.get, store.put
        self._ttl_ms, self._now = ttl_ms, now

    def exists(self, key: bytes) -> bool:
        return next(self.get(key), None) is not None

    def get(self, key: bytes) -> Iterator[bytes]:
        """The elements, oldest first. Writes after the first one was taken do not change them."""
        head = self._read(key)
        if head is None:
            return iter(())
        first, end = _HEAD.unpack_from(head)
        if first == end:
            return self._elements([head], _HEAD.size)
        pieces = [self._read(key + _NUMBER.pack(number)) for number in range(first, end)]
        return self._elements([bytes(_HEAD.size) + piece for piece in pieces if piece is not None] + [head], _HEAD.size)

    def put(self, key: bytes, elements: Sequence[bytes]) -> None:
        head = self._read(key)
        first, end = (0, 0) if head is None else _HEAD.unpack_from(head)
        for number in range(first, end):
            self._write(key + _NUMBER.pack(number), None)
        if not elements:
            if head is not None:
                self._write(key, None)
            return
        self._store_all(key, 0, 0, b"", elements)

    def append(self, key: bytes, elements: Sequence[bytes]) -> None:
        if not elements:
            return
        head = self._read(key)
        if head is None:
            self._store_all(key, 0, 0, b"", elements)
            return
        first, end = _HEAD.unpack_from(head)
        while first < end and self._ttl_ms is not None and self._read(key + _NUMBER.pack(first)) is None:
            first += 1
        newest = head[_HEAD.size :]
        self._store_all(key, first, end, newest if self._ttl_ms is None else self._still_alive(newest), elements)

    def _still_alive(self, piece: bytes) -> bytes:
        at, now = 0, self._now()
        while at < len(piece):
            expires, length = _TIMED.unpack_from(piece, at)
            if expires > now:
                break
            at += _TIMED.size + length
        return piece[at:]

    def _store_all(self, key: bytes, first: int, end: int, newest: bytes, elements: Sequence[bytes]) -> None:
        pieces = [newest]
        size = len(newest)
        expires = None if self._ttl_ms is None else self._now() + self._ttl_ms
        for element in elements:
            if size >= PIECE_BYTES:
                self._write(key + _NUMBER.pack(end), b"".join(pieces))
                end, pieces, size = end + 1, [], 0
            before = _LENGTH.pack(len(element)) if expires is None else _TIMED.pack(expires, len(element))
            pieces += (before, element)
            size += len(before) + len(element)
        self._write(key, _HEAD.pack(first, end) + b"".join(pieces))

    def _elements(self, pieces: Sequence[bytes], begin: int) -> Iterator[bytes]:
        if self._ttl_ms is not None:
            yield from self._alive(pieces, begin)
            return
        unpack = _LENGTH.unpack_from
        for piece in pieces:
            at, end = begin, len(piece)
            while at < end:
                at, last = at + 4, at + 4 + unpack(piece, at)[0]
                yield piece[at:last]
                at = last

    def _alive(self, pieces: Sequence[bytes], begin: int) -> Iterator[bytes]:
        now = self._now()
        for piece in pieces:
            at, end = begin, len(piece)
            while at < end:
                expires, length = _TIMED.unpack_from(piece, at)
                at += _TIMED.size
                if expires > now:
                    yield piece[at : at + length]
                at += length
