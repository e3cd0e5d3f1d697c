"""Keys with their values, by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.key_index import KeyIndex

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
