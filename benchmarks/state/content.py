"""The content of a state and its changes: the same keys and values on every side, for Spark in Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEY_BYTES = 16
VALUE_BYTES = 100
SEED = 20130101
PART_KEYS = 50_000
FILL_KEYS = 1_000_000
"""Keys of one batch of the fill."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys, all different, and the value of each."""

    keys: list[bytes]
    values: list[bytes]

    def as_dict(self) -> dict[bytes, bytes | None]:
        """As changes of a store."""
        return dict(zip(self.keys, self.values, strict=True))


class StateContent:
    """The same calls give the same entries. Values are random bytes, so that nothing is gained by compressing them."""

    def __init__(self, value_bytes: int = VALUE_BYTES, seed: int = SEED) -> None:
        self.keys = 0
        """The number of keys in the state."""
        self._value_bytes = value_bytes
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._changes: dict[int, np.random.Generator] = {}

    def add(self, keys: int, at_once: int = PART_KEYS) -> Iterator[Entries]:
        """`count` more keys, in their order and in parts."""
        end = self.keys + keys
        while self.keys < end:
            first, self.keys = self.keys, min(self.keys + at_once, end)
            yield self._entries(list(range(first, self.keys)), self._random)

    def change(self, count: int) -> Entries:
        """`count` keys, anywhere in the state, with new values. The n-th call with a count does not depend on how
        often other counts were asked for."""
        random = self._changes.setdefault(count, np.random.default_rng([self._seed, count]))
        return self._entries(random.choice(self.keys, count, replace=False).tolist(), random)

    def _entries(self, numbers: list[int], random: np.random.Generator) -> Entries:
        size = self._value_bytes
        data = random.bytes(len(numbers) * size)
        values = [data[start : start + size] for start in range(0, len(data), size)]
        return Entries([b"key-%012d" % number for number in numbers], values)


def keys_of(megabytes: int, value_bytes: int = VALUE_BYTES) -> int:
    """The number of keys that make a state of so many MB."""
    return max(1, megabytes * 2**20 // (KEY_BYTES + value_bytes))


@dataclass(frozen=True, slots=True)
class StateInputs:
    """Where the files lie: `fill` of them make the state, then there is one for each change."""

    folder: Path
    fill: int
    changes: int

    def file(self, number: int) -> Path:
        """The number-th file; they are read in this order."""
        return self.folder / f"{number:06d}.parquet"


def write_state_inputs(
    folder: Path, keys: int, value_bytes: int, changes: Iterable[int], fill_keys: int = FILL_KEYS
) -> StateInputs:
    """Write the fill, and a file for each number of changed keys."""
    folder.mkdir(parents=True)
    content = StateContent(value_bytes)
    fill = 0
    for entries in content.add(keys, fill_keys):
        write_entries(StateInputs(folder, 0, 0).file(fill), entries, fill)
        fill += 1
    written = fill
    for count in changes:
        write_entries(StateInputs(folder, 0, 0).file(written), content.change(count), written)
        written += 1
    return StateInputs(folder, fill, written - fill)


def write_entries(path: Path, entries: Entries, number: int) -> None:
    """One file. Modification times are a second apart: Spark reads the oldest file first."""
    keys = pa.array(entries.keys, pa.binary()).cast(pa.string())
    table = pa.table({"key": keys, "value": pa.array(entries.values, pa.binary())})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def spark_parameters(folder: Path, keys: int, counts: list[int]) -> dict[str, Any]:
    """Write the files of a state and its changes, and describe them for a side of Spark."""
    inputs = write_state_inputs(folder, keys, VALUE_BYTES, counts)
    return {"files": str(folder), "fill": inputs.fill, "changes": inputs.changes, "counts": counts}
