"""What a state holds and how it changes: the same keys and values on every side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 16
VALUE_BYTES = 100
SEED = 20130101
PART_KEYS = 50_000


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys, all different, and the value of each."""

    keys: list[bytes]
    values: list[bytes]

    def as_dict(self) -> dict[bytes, bytes | None]:
        """As changes of a store."""
        return dict(zip(self.keys, self.values, strict=True))

    @property
    def size_bytes(self) -> int:
        """Of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, self.values))


class StateContent:
    """The same calls give the same entries. Values are random bytes, so that nothing is gained by compressing them."""

    def __init__(self, value_bytes: int = VALUE_BYTES, seed: int = SEED) -> None:
        self.keys = 0
        """How many the state holds."""
        self._value_bytes = value_bytes
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._changes: dict[int, np.random.Generator] = {}

    def add(self, keys: int, at_once: int = PART_KEYS) -> Iterator[Entries]:
        """That many more keys, in their order and in parts."""
        end = self.keys + keys
        while self.keys < end:
            first, self.keys = self.keys, min(self.keys + at_once, end)
            yield self._entries(list(range(first, self.keys)), self._random)

    def change(self, count: int) -> Entries:
        """That many keys, anywhere in the state, with new values. The n-th call with a count does not depend on how
        often other counts were asked for."""
        random = self._changes.setdefault(count, np.random.default_rng([self._seed, count]))
        return self._entries(random.choice(self.keys, count, replace=False).tolist(), random)

    def _entries(self, numbers: list[int], random: np.random.Generator) -> Entries:
        size = self._value_bytes
        data = random.bytes(len(numbers) * size)
        values = [data[start : start + size] for start in range(0, len(data), size)]
        return Entries([b"key-%012d" % number for number in numbers], values)


def keys_of(megabytes: int, value_bytes: int = VALUE_BYTES) -> int:
    """How many keys make a state of that many MB."""
    return max(1, megabytes * 2**20 // (KEY_BYTES + value_bytes))
