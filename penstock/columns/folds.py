"""Folds of aggregates by column: the states of many groups in arrays, to which the values of many messages are added at
once. Counts, sums and means are here.

Sums of whole numbers and decimals are exact, whatever their length. They are in 64 bits as long as all fit, else whole
numbers of Python. States are stored as bytes. A state is a row of `PackedRows`. Of a sum that its column cannot hold,
the row has the lower part, and a word of eight bytes for each sum follows behind the row (`StateRows`). Rows whose sums
all fit have no words, so they are as they were before sums could be longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Context, Decimal
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
    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        """Add states to those of their groups, in order, as if their values had been added. `stored` and `words` are as
        in `grow`."""

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

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        np.add.at(self._n, groups, numbers_of(stored[0]))

    def stored(self) -> Sequence[pa.Array]:
        return (pa.array(self._n),)

    def results(self) -> pa.Array:
        return pa.array(self._n)


def numbers_of(column: pa.Array) -> Numbers:
    """The numbers of a column, zero for a null; may be changed."""
    found: Numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return found if found.flags.writeable else found.copy()


_DIGITS = 38
"""The digits of a decimal of 128 bits."""
_SAFE = 2.0**62
"""Sums whose parts are together less than this do not leave 64 bits."""
_LOW = (1 << 32) - 1
_EXACT = Context(prec=200)
_DOUBLES = 1 << 53
"""Whole numbers up to this one are doubles."""


class WholeSumFold(ColumnFold):
    """Sums of whole numbers."""

    unit: int
    """The value of the stored word's last bit."""

    def __init__(self) -> None:
        self._sum: Numbers = np.zeros(0, np.int64)
        self._most = 0.0
        """No sum is greater than this, in either direction."""

    @abstractmethod
    def lower(self, column: pa.Array) -> Numbers:
        """The stored parts as whole numbers."""

    @abstractmethod
    def whole(self, values: Any) -> Numbers:
        """The values of a column as whole numbers."""

    @abstractmethod
    def column(self, sums: Numbers, absent: Numbers | None = None) -> pa.Array:
        """Sums that fit, as a column."""

    @abstractmethod
    def word_of(self, total: int) -> int:
        """The part of a sum that its column cannot hold."""

    @abstractmethod
    def fits(self, total: int) -> bool:
        """True if the type of the result can hold the sum."""

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        more = self._whole_sums(stored[0], words)
        if np.object_ in (more.dtype, self._sum.dtype):
            more, self._sum = more.astype(np.object_), self._sum.astype(np.object_)
        self._sum = np.concatenate((self._sum, more))
        self._most = max(self._most, _greatest(more))

    def _whole_sums(self, lower: pa.Array, words: Integers | None) -> Numbers:
        found = self.lower(lower)
        if words is not None and words.any():
            found = found.astype(np.object_) + words.astype(np.object_) * self.unit
        return found

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        self._add(groups, self.whole(values))

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        self._add(groups, self._whole_sums(stored[0], words))

    def _add(self, groups: Integers, numbers: Numbers) -> None:
        size = float(np.abs(numbers.astype(np.float64)).sum())
        if np.object_ not in (numbers.dtype, self._sum.dtype) and self._most + size < _SAFE:
            self._most += size
            np.add.at(self._sum, groups, numbers.astype(np.int64))
            return
        touched, inverse = np.unique(groups, return_inverse=True)
        totals = self._sum[touched].astype(np.object_) + _parts(numbers, inverse, len(touched))
        if self._sum.dtype == np.object_ or not all(-(1 << 63) <= total < 1 << 63 for total in totals):
            self._sum = self._sum.astype(np.object_)
        self._sum[touched] = totals
        self._most = _greatest(self._sum)

    @property
    def sums(self) -> Numbers:
        """The sums, of 64 bits or of Python."""
        return self._sum

    def words(self) -> Integers:
        if self._sum.dtype != np.object_:
            return np.zeros(len(self._sum), np.int64)
        return np.array([self.word_of(total) for total in self._sum], np.int64)

    def stored(self) -> Sequence[pa.Array]:
        words = self.words()
        return (self.column(self._sum - words.astype(np.object_) * self.unit if words.any() else self._sum),)

    def misfits(self) -> Flags | None:
        if self._sum.dtype != np.object_:
            return None
        found: Flags = np.array([not self.fits(total) for total in self._sum], np.bool_)
        return found if found.any() else None

    def results(self) -> pa.Array:
        absent = self.misfits()
        return self.column(self._sum if absent is None else np.where(absent, 0, self._sum), absent)


class IntegerSumFold(WholeSumFold):
    """The sum of integers, in 64 bits: without a sign if the integers have 64 bits without one."""

    fields = (("sum", pa.int64()),)
    unit = 1 << 64

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._unsigned = pa.types.is_uint64(kind)
        self.result_type = pa.uint64() if self._unsigned else pa.int64()

    def lower(self, column: pa.Array) -> Numbers:
        found = numbers_of(column)
        return _narrowed(found.view(np.uint64)) if self._unsigned else found

    def whole(self, values: Any) -> Numbers:
        return numbers_of(values.cast(self.result_type))

    def column(self, sums: Numbers, absent: Numbers | None = None) -> pa.Array:
        if self._unsigned and absent is None and sums.dtype == np.object_:
            return pa.array(sums.astype(np.uint64).view(np.int64))
        return pa.array(sums.astype(np.int64), mask=absent)

    def results(self) -> pa.Array:
        absent = self.misfits()
        sums = self._sum if absent is None else np.where(absent, 0, self._sum)
        return pa.array(sums.astype(np.uint64 if self._unsigned else np.int64), mask=absent)

    def word_of(self, total: int) -> int:
        word: int = total >> 64 if self._unsigned else (total + (1 << 63)) >> 64
        return word

    def fits(self, total: int) -> bool:
        return self.word_of(total) == 0


class FloatSumFold(ColumnFold):
    """The sum of floats, as doubles, in the order in which they came."""

    result_type = pa.float64()
    fields = (("sum", pa.float64()),)

    def __init__(self) -> None:
        self._sum = np.zeros(0, np.float64)

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        self._sum = np.concatenate((self._sum, numbers_of(stored[0])))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        with np.errstate(all="ignore"):
            np.add.at(self._sum, groups, numbers_of(values.cast(pa.float64())))  # type: ignore[union-attr]

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        with np.errstate(all="ignore"):
            np.add.at(self._sum, groups, numbers_of(stored[0]))

    @property
    def sums(self) -> Numbers:
        return self._sum

    def stored(self) -> Sequence[pa.Array]:
        return (pa.array(self._sum),)

    def results(self) -> pa.Array:
        return pa.array(self._sum)


class MeanFold(ColumnFold):
    """The double that is nearest to the sum divided by the number; of floats, to the sum that has been rounded."""

    result_type = pa.float64()

    def __init__(self, total: WholeSumFold | FloatSumFold) -> None:
        self._sum, self._n = total, CountFold()
        self.fields = (*self._sum.fields, *self._n.fields)

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        self._sum.grow(stored[:1], words)
        self._n.grow(stored[1:])

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        self._sum.add(groups, values, times)
        self._n.add(groups, values, times)

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        self._sum.merge(groups, stored[:1], words)
        self._n.merge(groups, stored[1:])

    def stored(self) -> Sequence[pa.Array]:
        return (*self._sum.stored(), *self._n.stored())

    def words(self) -> Integers:
        return self._sum.words()

    def results(self) -> pa.Array:
        sums, counts = self._sum.sums, self._n.results().to_numpy()
        empty = counts == 0
        n = np.where(empty, 1, counts)
        with np.errstate(all="ignore"):
            means = (sums.astype(np.float64) / n).astype(np.float64)
        if self.has_word:
            for group in np.flatnonzero((sums > _DOUBLES) | (sums < -_DOUBLES)).tolist():
                means[group] = int(sums[group]) / int(n[group])
        return pa.array(means, mask=empty)


class DecimalSumFold(WholeSumFold):
    """The sum of decimals, in 38 digits."""

    unit = 10**_DIGITS

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self.result_type = pa.decimal128(_DIGITS, kind.scale)
        self.fields = (("sum", self.result_type),)

    def lower(self, column: pa.Array) -> Numbers:
        return _units(column)

    def whole(self, values: Any) -> Numbers:
        return _units(values)

    def column(self, sums: Numbers, absent: Numbers | None = None) -> pa.Array:
        return _decimals(sums, self.result_type, absent)

    def word_of(self, total: int) -> int:
        word: int = total // self.unit if total >= 0 else -(-total // self.unit)
        return word

    def fits(self, total: int) -> bool:
        return self.word_of(total) == 0


class DecimalMeanFold(MeanFold):
    """The mean of decimals, with four more digits behind the point if there is room. Half a digit is rounded away from
    zero, as in SQL."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(DecimalSumFold(kind))
        self._more = min(4, max(0, _DIGITS - kind.precision))
        self.result_type = pa.decimal128(_DIGITS, kind.scale + self._more)

    def results(self) -> pa.Array:
        means, counts = self._means(), self._n.results().to_numpy()
        absent = self.misfits()
        empty = counts == 0 if absent is None else (counts == 0) | absent
        return _decimals(means if absent is None else np.where(absent, 0, means), self.result_type, empty)

    def misfits(self) -> Flags | None:
        found: Flags = np.array([abs(mean) >= 10**_DIGITS for mean in self._means()], np.bool_)
        return found if found.any() else None

    def _means(self) -> Numbers:
        n = np.maximum(self._n.results().to_numpy(), 1).astype(np.object_)
        units = self._sum.sums.astype(np.object_) * 10**self._more
        halves = np.abs(units) * 2 + n
        means: Numbers = np.where(units < 0, -1, 1) * (halves // (2 * n))
        return means


def whole_sum(lower: Any, word: int) -> Any:
    """The sum of its two parts, as they are stored."""
    if not isinstance(lower, Decimal):
        return int(lower) + word * IntegerSumFold.unit
    unit = Decimal((0, (1,), int(lower.as_tuple().exponent)))
    return _EXACT.add(lower, _EXACT.multiply(Decimal(word * DecimalSumFold.unit), unit))


def _greatest(numbers: Numbers) -> float:
    return float(np.abs(numbers.astype(np.float64)).max()) if len(numbers) else 0.0


def _narrowed(numbers: Numbers) -> Numbers:
    """Numbers without a sign, with one if all fit."""
    most = int(numbers.max()) if len(numbers) else 0
    return numbers.astype(np.int64) if most < 1 << 63 else numbers.astype(np.object_)


def _parts(numbers: Numbers, groups: Integers, count: int) -> Numbers:
    """The sums of each group, as whole numbers of Python. The halves of 64 bits are summed by themselves, which no
    number of messages of a batch makes longer than 64 bits."""
    if numbers.dtype == np.object_:
        totals = np.zeros(count, np.object_)
        np.add.at(totals, groups, numbers)
        return totals
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(low, groups, (numbers & numbers.dtype.type(_LOW)).astype(np.int64))
    np.add.at(high, groups, (numbers >> numbers.dtype.type(32)).astype(np.int64))
    found: Numbers = high.astype(np.object_) * (1 << 32) + low.astype(np.object_)
    return found


def _units(column: pa.Array) -> Numbers:
    """Decimals as whole numbers of their last digit, zero for a null."""
    kind = column.type
    if kind.bit_width > 128:
        digits = [0 if each is None else int(each.scaleb(kind.scale, _EXACT)) for each in column.to_pylist()]
        return np.array([*digits, None], np.object_)[:-1]
    if kind.bit_width < 128:
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = words[::2], words[1::2]
    fits = high == low >> 63
    if column.null_count:
        there = ~column.is_null().to_numpy(zero_copy_only=False)
        low, high, fits = np.where(there, low, 0), np.where(there, high, 0), fits | ~there
    if fits.all():
        return low
    whole: Numbers = (high.astype(np.object_) << 64) + low.view(np.uint64).astype(np.object_)
    return whole


def _decimals(units: Numbers, kind: pa.DataType, absent: Numbers | None = None) -> pa.Array:
    words = np.empty(2 * len(units), np.int64)
    if units.dtype == np.object_:
        words[1::2] = (units >> 64).astype(np.int64)
        words[::2] = (units & (1 << 64) - 1).astype(np.uint64).view(np.int64)
    else:
        words[::2], words[1::2] = units, units >> 63
    valid = None if absent is None else pa.array(~absent).buffers()[1]
    return pa.Array.from_buffers(kind, len(units), [valid, pa.py_buffer(words)])
