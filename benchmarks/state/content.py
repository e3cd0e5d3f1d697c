"""The content of a state and its changes: the same keys and values on every side, for Spark in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.workload import write_file

KEY_BYTES = 16
VALUE_BYTES = 100
SEED = 20130101
PART_KEYS = 50_000
FILL_KEYS = 1_000_000
"""Keys of one batch of the fill."""


Entries = dict[bytes, bytes]
"""Keys, and the value of each."""


class StateContent:
    """The same calls give the same entries. Values are random bytes, so that nothing is gained by compressing them."""

    def __init__(self) -> None:
        self.keys = 0
        """The number of keys in the state."""
        self._random = np.random.default_rng(SEED)
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
        random = self._changes.setdefault(count, np.random.default_rng([SEED, count]))
        return self._entries(random.choice(self.keys, count, replace=False).tolist(), random)

    def _entries(self, numbers: list[int], random: np.random.Generator) -> Entries:
        data = random.bytes(len(numbers) * VALUE_BYTES)
        values = [data[start : start + VALUE_BYTES] for start in range(0, len(data), VALUE_BYTES)]
        return dict(zip((b"key-%012d" % number for number in numbers), values, strict=True))


def keys_of(megabytes: int) -> int:
    """The number of keys that make a state of so many MB."""
    return max(1, megabytes * 2**20 // (KEY_BYTES + VALUE_BYTES))


def write_state_inputs(folder: Path, keys: int, counts: Sequence[int], fill_keys: int = FILL_KEYS) -> dict[str, Any]:
    """Write the files of a state, and one for each number of changed keys; describe them for a side of Spark."""
    content = StateContent()
    fill = -(-keys // fill_keys)
    changes = (content.change(count) for count in counts)
    for number, entries in enumerate(chain(content.add(keys, fill_keys), changes)):
        write_entries(folder, number, entries)
    return {"files": str(folder), "fill": fill, "changes": len(counts), "counts": list(counts)}


def write_entries(folder: Path, number: int, entries: Entries) -> Path:
    """One file; they are read in the order of their numbers."""
    keys = pa.array(entries.keys(), pa.binary()).cast(pa.string())
    table = pa.table({"key": keys, "value": pa.array(entries.values(), pa.binary())})
    return write_file(folder, number, table, compression="none", use_dictionary=False)
