"""An index of keys: byte strings to row numbers, many at once.

A hash table with open addressing, in arrays: a batch of keys is hashed, probed and compared by a few passes over whole
columns, so that a key costs tens of nanoseconds and no Python object. A key keeps its row number for as long as the
index lives.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

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
