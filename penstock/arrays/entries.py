"""Keys by column: an index of keys, and keys with their values.

`KeyIndex` leads from byte strings to row numbers, many at once. It is a hash table with open addressing, in arrays:
a batch of keys is hashed, probed and compared by a few passes over whole columns, so that a key costs tens of
nanoseconds and no Python object. A key keeps its row number for as long as the index lives.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrays.byte_arrays import ByteArray, Heap, Integers, with_room

Words = npt.NDArray[np.uint64]

_ABSENT = -1
_LEAST_SLOTS = 1 << 10
_M = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_BLOCK = 1 << 15
"""Keys that are looked up together: what is made of them stays in the processor's cache."""
_HIGH = np.uint64(0xFFFFFFFF << 32)
_LOW = np.uint64(0xFFFFFFFF)
_MOST_ROWS = (1 << 32) - 2


class KeyIndex:
    """The row numbers of keys: 0, 1, 2, ... in the order in which they were added.

    A slot of the table has the upper half of a key's hash and, in its lower half, the row number plus one; an empty one
    is 0. So a look-up touches two places: the slot, and the bytes of the key, which are always compared.
    """

    def __init__(self, seed: int | None = None) -> None:
        """`seed` of the hashes: a random one, so that nobody can choose keys that collide."""
        self._seed = secrets.randbits(64) if seed is None else seed
        self._slots: Words = np.zeros(_LEAST_SLOTS, np.uint64)
        self._hashes: Words = np.zeros(16, np.uint64)
        self.keys = Heap()

    def __len__(self) -> int:
        return self.keys.count

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._slots.nbytes + self._hashes.nbytes + self.keys.nbytes

    def find(self, keys: ByteArray) -> Integers:
        """The row number of each key, -1 for one that is not there."""
        found = np.empty(len(keys), np.int64)
        hashes = hash_bytes(keys, self._seed)
        for begin in range(0, len(keys), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            found[block] = self._find(keys.slice(block), hashes[block])
        return found

    def find_one(self, key: bytes) -> int:
        found = hash_one(key, self._seed)
        mask = len(self._slots) - 1
        at = found & mask
        while slot := int(self._slots[at]):
            row = (slot & 0xFFFFFFFF) - 1
            if slot >> 32 == found >> 32 and self.keys.get(row) == key:
                return row
            at = at + 1 & mask
        return _ABSENT

    def add(self, keys: ByteArray) -> Integers:
        """The row number of each key; a key that is not there is added. A key may occur several times."""
        rows = np.empty(len(keys), np.int64)
        hashes = hash_bytes(keys, self._seed)
        for begin in range(0, len(keys), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            part, own = keys.slice(block), hashes[block]
            found = self._find(part, own)
            absent = np.flatnonzero(found == _ABSENT)
            if len(absent):
                self._make_room(len(absent))
                found[absent] = self._insert(part.take(absent), own[absent])
            rows[block] = found
        return rows

    def _find(self, keys: ByteArray, hashes: Words) -> Integers:
        mask = np.int64(len(self._slots) - 1)
        at = hashes.astype(np.int64) & mask
        high = hashes & _HIGH
        result = np.full(len(keys), _ABSENT, np.int64)
        slots = self._slots[at]
        waiting: Any = None
        while True:
            same = (slots & _HIGH) == high
            same &= slots != 0
            matches = np.flatnonzero(same)
            if len(matches):
                rows = (slots[matches] & _LOW).astype(np.int64) - 1
                which = matches if waiting is None else waiting[matches]
                equal = self.keys.take(rows).equal(keys.take(which))
                if equal.all():
                    result[which] = rows
                else:
                    result[which[equal]] = rows[equal]
                    same[matches[~equal]] = False
            left = np.flatnonzero(~same & (slots != 0))
            if len(left) == 0:
                return result
            waiting = left if waiting is None else waiting[left]
            at = at[left] + 1 & mask
            high = high[left]
            slots = self._slots[at]

    def _insert(self, keys: ByteArray, hashes: Words) -> Integers:
        """Add keys that are not there; some of them may be the same. Each tries to take an empty slot for its own
        number; of several keys at one slot one wins, and the others look if they are the same key."""
        count, base = len(keys), len(self)
        mask = np.int64(len(self._slots) - 1)
        own = np.arange(base, base + count)
        winner = own.copy()
        mine = hashes & _HIGH | (own + 1).astype(np.uint64)
        at = hashes.astype(np.int64) & mask
        taken = at.copy()
        waiting = np.arange(count)
        while len(waiting):
            here = at[waiting]
            empty = self._slots[here] == 0
            self._slots[here[empty]] = mine[waiting[empty]]
            slots = self._slots[here]
            won = slots == mine[waiting]
            taken[waiting[won]] = here[won]
            rest, slots = waiting[~won], slots[~won]
            there = (slots & _LOW).astype(np.int64) - 1
            maybe = np.flatnonzero((there >= base) & ((slots & _HIGH) == (mine[rest] & _HIGH)))
            same = np.zeros(len(rest), np.bool_)
            same[maybe] = keys.take(rest[maybe]).equal(keys.take(there[maybe] - base))
            winner[rest[same]] = there[same]
            waiting = rest[~same]
            at[waiting] = at[waiting] + 1 & mask
        first = np.flatnonzero(winner == own)
        final = np.full(count, _ABSENT, np.int64)
        final[first] = np.arange(base, base + len(first))
        self._slots[taken[first]] = hashes[first] & _HIGH | (final[first] + 1).astype(np.uint64)
        self.keys.add(keys.take(first))
        self._hashes[base : base + len(first)] = hashes[first]
        return final[winner - base]

    def _make_room(self, more: int) -> None:
        needed = len(self) + more
        if needed > _MOST_ROWS:
            raise MemoryError(f"an index of keys has at most {_MOST_ROWS} keys")
        self._hashes = with_room(self._hashes, len(self), more)
        size = len(self._slots)
        while size < 2 * needed:
            size *= 2
        if size > len(self._slots):
            self._slots = np.zeros(size, np.uint64)
            for begin in range(0, len(self), _BLOCK):
                self._enter(np.arange(begin, min(begin + _BLOCK, len(self))))

    def _enter(self, rows: Integers) -> None:
        """Enter rows again, in a larger table."""
        mask = np.int64(len(self._slots) - 1)
        hashes = self._hashes[rows]
        mine = hashes & _HIGH | (rows + 1).astype(np.uint64)
        at = hashes.astype(np.int64) & mask
        while len(at):
            empty = self._slots[at] == 0
            self._slots[at[empty]] = mine[empty]
            left = self._slots[at] != mine
            mine, at = mine[left], at[left] + 1 & mask


def hash_bytes(keys: ByteArray, seed: int) -> Words:
    """A hash of 64 bits of each key."""
    result = np.empty(len(keys), np.uint64)
    width = keys.width
    groups: list[tuple[int, Any]] = []
    if width is not None:
        groups.append((width, None))
    elif len(keys):
        lengths = keys.lengths.astype(np.uint16) if int(keys.lengths.max()) < 1 << 16 else keys.lengths
        order = np.argsort(lengths, kind="stable")  # numpy sorts 16-bit numbers by radix
        cuts = np.flatnonzero(np.diff(keys.lengths[order])) + 1
        groups += [(int(keys.lengths[group[0]]), group) for group in np.split(order, cuts)]
    for length, group in groups:
        own = keys if group is None else keys.take(group)
        for begin in range(0, len(own), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            part = ByteArray(own.data, own.starts[block], own.lengths[block])
            result[block if group is None else group[block]] = _hash_rows(part, length, seed)
    return result


def _hash_rows(keys: ByteArray, length: int, seed: int) -> Words:
    words = (length + 7) // 8
    rows = keys.rows(length)
    if length % 8:
        padded = np.zeros((len(keys), words * 8), np.uint8)
        padded[:, :length] = rows
        rows = padded
    columns = np.ascontiguousarray(rows).view("<u8")
    m = np.uint64(_M)
    h = np.full(len(keys), (seed ^ length * _M) & _WORD, np.uint64)
    for number in range(words):
        h ^= columns[:, number]
        h *= m
        h ^= h >> np.uint64(32)
    h *= m
    h ^= h >> np.uint64(29)
    return h


def hash_one(key: bytes, seed: int) -> int:
    """As `hash_bytes`, for one key."""
    h = (seed ^ len(key) * _M) & _WORD
    for begin in range(0, len(key), 8):
        h = (h ^ int.from_bytes(key[begin : begin + 8], "little")) * _M & _WORD
        h ^= h >> 32
    h = h * _M & _WORD
    return h ^ h >> 29


Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of keys in an engine, which spare it a second look-up."""

    engine: object
    """The engine that numbers the rows."""
    rows: Integers
    """-1 for a key that was not there."""


class Entries(Mapping[bytes, bytes | None]):
    """A mapping from keys to values, None for a deleted key, in columns. It never changes. As a mapping, it makes all
    its objects at the first use."""

    def __init__(self, keys: ByteArray, values: ByteArray, present: Flags, found: FoundRows | None = None) -> None:
        """The keys are all different. `present` is False where a key is deleted; the value is empty there. `found`:
        where an engine has the keys."""
        self.key_bytes = keys
        self.value_bytes = values
        self.present = present
        self.found = found

    @classmethod
    def of(cls, changes: Mapping[bytes, bytes | None]) -> Entries:
        if isinstance(changes, Entries):
            return changes
        keys, values = pa.array(list(changes), pa.large_binary()), pa.array(list(changes.values()), pa.large_binary())
        return cls(ByteArray.of(keys), ByteArray.of(values), ~values.is_null().to_numpy(zero_copy_only=False))

    @classmethod
    def last_of(cls, parts: Iterable[Entries]) -> Entries:
        """The entries of all parts, one after the other: of several with the same key, the last one."""
        some = list(parts)
        if len(some) == 1:
            return some[0]
        keys = ByteArray.concat([part.key_bytes for part in some])
        values = ByteArray.concat([part.value_bytes for part in some])
        present = np.concatenate([part.present for part in some])
        last = last_rows(keys)
        return cls(keys.take(last), values.take(last), present[last])

    @property
    def deletes(self) -> int:
        return len(self) - int(self.present.sum())

    @property
    def size(self) -> int:
        """The bytes of all keys and values."""
        return self.key_bytes.size + self.value_bytes.size

    @cached_property
    def _objects(self) -> dict[bytes, bytes | None]:
        keys, values = self.key_bytes.to_arrow().to_pylist(), self.value_bytes.to_arrow(self.present).to_pylist()
        return dict(zip(keys, values, strict=True))

    def __len__(self) -> int:
        return len(self.key_bytes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._objects)

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._objects[key]

    def take(self, rows: Integers) -> Entries:
        return Entries(self.key_bytes.take(rows), self.value_bytes.take(rows), self.present[rows])

    def blocks(self, size: int) -> Iterator[Entries]:
        """The entries in blocks of at most so many."""
        for begin in range(0, len(self), size):
            part = slice(begin, begin + size)
            yield Entries(self.key_bytes.slice(part), self.value_bytes.slice(part), self.present[part])


def last_rows(keys: ByteArray) -> Integers:
    """The row of the last occurrence of each key, in the order of the first ones."""
    numbers = KeyIndex().add(keys)
    last = np.zeros(int(numbers.max()) + 1 if len(numbers) else 0, np.int64)
    last[numbers] = np.arange(len(numbers))  # of several assignments to one place, numpy keeps the last
    return last
