"""The same state for Spark: Parquet files, one a batch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.state_content import Entries, StateContent

FILL_KEYS = 1_000_000
"""Keys of one batch of the fill."""


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
