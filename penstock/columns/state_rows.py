"""The states of aggregates as bytes: packed rows, and behind a row the words of sums that have left their type.

A state is a row of `PackedRows`. Of a sum that its column cannot hold, the row has the lower part, and a word of eight
bytes for each sum follows behind the row. Rows whose sums all fit have no words, so they are as they were before sums
could be longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.entries import Flags
from penstock.arrays.packed_rows import PackedRows

_WORD = 8


class StateRows:
    """Packs and unpacks states with these columns."""

    def __init__(self, fields: Sequence[pa.Field], words: int) -> None:
        """`words`: how many of the columns are sums that can be longer."""
        self._rows = PackedRows(fields)
        self._words = words

    def pack(self, states: pa.StructArray, words: Sequence[Integers]) -> ByteArray:
        """`words`: for each sum, the word of each row; 0 where it fits."""
        packed = self._rows.pack(states)
        longer = np.zeros(len(packed), np.bool_)
        for word in words:
            longer |= word != 0
        if not longer.any():
            return packed
        some, others = np.flatnonzero(longer), np.flatnonzero(~longer)
        tails = np.stack([word[some] for word in words], axis=1).astype("<i8")
        made = [packed[row] + tail.tobytes() for row, tail in zip(some.tolist(), tails, strict=True)]
        both = ByteArray.concat([ByteArray.of_list(made), packed.take(others)])
        order = np.empty(len(packed), np.int64)
        order[np.concatenate((some, others))] = np.arange(len(packed))
        return both.take(order)

    def unpack(self, rows: ByteArray, valid: Flags | None = None) -> tuple[pa.StructArray, list[Integers]]:
        """The states, null where `valid` is false; and for each sum, the word of each row.

        Raises:
            ValueError: the bytes are not a state.
        """
        words = [np.zeros(len(rows), np.int64) for _ in range(self._words)]
        if self._words and len(rows):
            there = np.arange(len(rows)) if valid is None else np.flatnonzero(valid)
            sizes = self._rows.sizes(rows.take(there))
            longer = rows.lengths[there] == sizes + _WORD * self._words
            if longer.any():
                some = there[longer]
                for row in some.tolist():
                    tail = np.frombuffer(rows[row][-_WORD * self._words :], "<i8")
                    for word, part in zip(words, tail.tolist(), strict=True):
                        word[row] = part
                lengths = rows.lengths.copy()
                lengths[some] = sizes[longer]
                rows = ByteArray(rows.data, rows.starts, lengths)
        return self._rows.unpack(rows, valid), words
