"""One aggregate by column: the states of many groups in arrays, to which the values of many messages are added at
once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrays.byte_arrays import Integers
from penstock.arrays.entries import Flags

Numbers: TypeAlias = npt.NDArray[Any]


def has_word(column: str, kind: pa.DataType) -> bool:
    """True for a column of states that is a sum of whole numbers or decimals: a word may follow for its upper part."""
    return column == "sum" and not pa.types.is_floating(kind)


class ColumnFold(ABC):
    """The states of the groups 0, 1, 2, ... of one aggregate."""

    fields: Sequence[tuple[str, pa.DataType]]
    """The columns of a stored state."""
    result_type: pa.DataType

    @property
    def has_word(self) -> bool:
        """True if its sum may be longer than its column, which then has the lower part of it."""
        return any(has_word(name, kind) for name, kind in self.fields)

    @abstractmethod
    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        """Add groups, with their stored states: a column for each of `fields`, null for a group that is new.

        Args:
            stored: the columns.
            words: the upper parts of the sums, if the fold has them.
        """

    @abstractmethod
    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        """Add values, none of which is null, to their groups, in order."""

    @abstractmethod
    def stored(self) -> Sequence[pa.Array]:
        """The states, a column for each of `fields`."""

    def words(self) -> Integers:
        """The upper part of each sum, 0 where it fits."""
        return np.zeros(0, np.int64)

    @abstractmethod
    def results(self) -> pa.Array:
        """The result of each group."""

    def misfits(self) -> Flags | None:
        """True for the groups whose result its type cannot hold; None if there are none."""
        return None


class CountFold(ColumnFold):
    fields = (("n", pa.int64()),)
    result_type = pa.int64()

    def __init__(self) -> None:
        self._n = np.zeros(0, np.int64)

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        self._n = np.concatenate((self._n, numbers_of(stored[0])))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        self._n += np.bincount(groups, minlength=len(self._n))

    def stored(self) -> Sequence[pa.Array]:
        return (pa.array(self._n),)

    def results(self) -> pa.Array:
        return pa.array(self._n)


def numbers_of(column: pa.Array) -> Numbers:
    """The numbers of a column, zero for a null; may be changed."""
    found: Numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return found if found.flags.writeable else found.copy()
