"""Aggregates by column: the states of many groups in arrays, to which the values of many messages are added at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns.byte_arrays import Integers

Numbers: TypeAlias = npt.NDArray[Any]
_DIGITS = 38
"""The digits of a decimal of 128 bits."""
_SAFE = 2.0**62
"""Sums whose parts are together less than this do not leave 64 bits."""


class Fold(ABC):
    """The states of the groups 0, 1, 2, ... of one aggregate."""

    fields: Sequence[tuple[str, pa.DataType]]
    """The columns of a stored state."""
    result_type: pa.DataType

    @abstractmethod
    def grow(self, stored: Sequence[pa.Array]) -> None:
        """Add groups, with their stored states: a column for each of `fields`, null for a group that is new."""

    @abstractmethod
    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        """Add values, none of which is null, to their groups, in order.

        Raises:
            OverflowError: a sum does not fit.
        """

    @abstractmethod
    def stored(self) -> Sequence[pa.Array]:
        """The states, a column for each of `fields`."""

    @abstractmethod
    def results(self) -> pa.Array:
        """The result of each group."""


class CountFold(Fold):
    fields = (("n", pa.int64()),)
    result_type = pa.int64()

    def __init__(self) -> None:
        self._n = np.zeros(0, np.int64)

    def grow(self, stored: Sequence[pa.Array]) -> None:
        self._n = np.concatenate((self._n, _numbers(stored[0])))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        self._n += _counts(groups, len(self._n))

    def stored(self) -> Sequence[pa.Array]:
        return (pa.array(self._n),)

    def results(self) -> pa.Array:
        return pa.array(self._n)


class SumFold(Fold):
    """The sum of integers, in 64 bits, or of floats, as doubles."""

    def __init__(self, kind: pa.DataType) -> None:
        self._exact = pa.types.is_integer(kind)
        self.result_type = pa.int64() if self._exact else pa.float64()
        self.fields = (("sum", self.result_type),)
        self._sum: Numbers = np.zeros(0, np.int64 if self._exact else np.float64)
        self._most = 0.0
        """No sum is greater than this, in either direction."""

    def grow(self, stored: Sequence[pa.Array]) -> None:
        more = _numbers(stored[0])
        if self._exact and len(more):
            self._most = max(self._most, float(np.abs(more.astype(np.float64)).max()))
        self._sum = np.concatenate((self._sum, more))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        numbers = _numbers(values.cast(self.result_type))  # type: ignore[union-attr]
        if self._exact and len(numbers):
            self._most += float(np.abs(numbers.astype(np.float64)).sum())
            if self._most >= _SAFE:
                self._add_exactly(groups, numbers)
                return
        np.add.at(self._sum, groups, numbers)

    def _add_exactly(self, groups: Integers, numbers: Numbers) -> None:
        sums: dict[int, int] = {}
        for group, number in zip(groups.tolist(), numbers.tolist(), strict=True):
            sums[group] = sums.get(group, int(self._sum[group])) + number
        for group, total in sums.items():
            if not -(1 << 63) <= total < 1 << 63:
                raise OverflowError(f"the sum {total} does not fit into 64 bits")
            self._sum[group] = total
        self._most = float(np.abs(self._sum.astype(np.float64)).max())

    def stored(self) -> Sequence[pa.Array]:
        return (pa.array(self._sum),)

    def results(self) -> pa.Array:
        return pa.array(self._sum)


class MeanFold(Fold):
    result_type = pa.float64()

    def __init__(self, total: Fold) -> None:
        self._sum, self._n = total, CountFold()
        self.fields = (*self._sum.fields, *self._n.fields)

    def grow(self, stored: Sequence[pa.Array]) -> None:
        self._sum.grow(stored[:1])
        self._n.grow(stored[1:])

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        self._sum.add(groups, values, times)
        self._n.add(groups, values, times)

    def stored(self) -> Sequence[pa.Array]:
        return (*self._sum.stored(), *self._n.stored())

    def results(self) -> pa.Array:
        sums, counts = self._sum.results().to_numpy(), self._n.results().to_numpy()
        empty = counts == 0
        return pa.array(sums / np.where(empty, 1, counts), mask=empty)


class DecimalSumFold(Fold):
    """The sum of decimals, exactly, in 38 digits. The states are whole numbers of the last digit: of 64 bits as long as
    all fit, else Python's."""

    def __init__(self, kind: pa.DataType) -> None:
        self.result_type = pa.decimal128(_DIGITS, kind.scale)
        self.fields = (("sum", self.result_type),)
        self._sum: Numbers = np.zeros(0, np.int64)
        self._most = 0.0

    def grow(self, stored: Sequence[pa.Array]) -> None:
        more = self._fitting(_units(stored[0]))
        self._sum = np.concatenate((self._sum, more))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        numbers = self._fitting(_units(values.cast(self.result_type)))  # type: ignore[union-attr]
        np.add.at(self._sum, groups, numbers)

    def _fitting(self, numbers: Numbers) -> Numbers:
        """The numbers, of Python's integers if sums with them may leave 64 bits."""
        self._most += float(np.abs(numbers.astype(np.float64)).sum()) if len(numbers) else 0.0
        if self._most >= _SAFE and self._sum.dtype != np.object_:
            self._sum = self._sum.astype(np.object_)
        return numbers.astype(self._sum.dtype)

    def sums(self) -> Numbers:
        return self._sum

    def stored(self) -> Sequence[pa.Array]:
        return (self.results(),)

    def results(self) -> pa.Array:
        return _decimals(self._sum, self.result_type)


class DecimalMeanFold(MeanFold):
    """The mean of decimals, with four more digits behind the point if there is room. Half a digit is rounded away from
    zero, as in SQL."""

    def __init__(self, kind: pa.DataType) -> None:
        self._sums = DecimalSumFold(kind)
        super().__init__(self._sums)
        self._more = min(4, max(0, _DIGITS - kind.precision))
        self.result_type = pa.decimal128(_DIGITS, kind.scale + self._more)

    def results(self) -> pa.Array:
        counts = self._n.results().to_numpy()
        n = np.maximum(counts, 1).astype(np.object_)
        units = self._sums.sums().astype(np.object_) * 10**self._more
        halves = np.abs(units) * 2 + n
        return _decimals(np.where(units < 0, -1, 1) * (halves // (2 * n)), self.result_type, counts == 0)


class VarianceFold(Fold):
    """The sample variance, from the number, the mean and the sum of the squared distances to it. The parts of two sets
    of values are combined by the formula of Chan, Golub and LeVeque."""

    fields = (("n", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64()))
    result_type = pa.float64()

    def __init__(self) -> None:
        self._n = np.zeros(0, np.int64)
        self._mean = np.zeros(0, np.float64)
        self._m2 = np.zeros(0, np.float64)

    def grow(self, stored: Sequence[pa.Array]) -> None:
        n, mean, m2 = map(_numbers, stored)
        self._n = np.concatenate((self._n, n))
        self._mean = np.concatenate((self._mean, mean))
        self._m2 = np.concatenate((self._m2, m2))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        numbers = _numbers(values.cast(pa.float64()))  # type: ignore[union-attr]
        touched, inverse = np.unique(groups, return_inverse=True)
        n = np.bincount(inverse, minlength=len(touched))
        mean = np.bincount(inverse, numbers, len(touched)) / n
        m2 = np.bincount(inverse, (numbers - mean[inverse]) ** 2, len(touched))
        before, total = self._n[touched], self._n[touched] + n
        delta = mean - self._mean[touched]
        self._m2[touched] += m2 + delta**2 * before * n / total
        self._mean[touched] += delta * n / total
        self._n[touched] = total

    def stored(self) -> Sequence[pa.Array]:
        return pa.array(self._n), pa.array(self._mean), pa.array(self._m2)

    def results(self) -> pa.Array:
        few = self._n < 2
        return pa.array(self._m2 / np.where(few, 1, self._n - 1), mask=few)


class ExtremeFold(Fold):
    """The smallest or the largest of numbers and times. NaN counts only where there is nothing else."""

    def __init__(self, kind: pa.DataType, *, largest: bool) -> None:
        self.result_type = kind
        self.fields = (("value", kind),)
        self._form = _NUMBER_FORMS[kind.bit_width] if not _is_number(kind) else None
        self._values: Numbers = _plain(pa.nulls(0, kind), self._form)
        self._has = np.zeros(0, np.bool_)
        floating = pa.types.is_floating(kind)
        self._best: Any = (np.fmax if largest else np.fmin) if floating else (np.maximum if largest else np.minimum)

    def grow(self, stored: Sequence[pa.Array]) -> None:
        self._has = np.concatenate((self._has, ~stored[0].is_null().to_numpy(zero_copy_only=False)))
        self._values = np.concatenate((self._values, _plain(stored[0], self._form)))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        numbers = _plain(values.cast(self.result_type), self._form)  # type: ignore[union-attr]
        first = _first_rows(groups)
        new = first[~self._has[groups[first]]]
        self._values[groups[new]] = numbers[new]
        self._has[groups[new]] = True
        self._best.at(self._values, groups, numbers)

    def stored(self) -> Sequence[pa.Array]:
        return (self.results(),)

    def results(self) -> pa.Array:
        found = pa.array(self._values, mask=~self._has)
        return found.view(self.result_type) if self._form is not None else found.cast(self.result_type)


class ChosenFold(Fold):
    """One of the values of each group: the earliest or the latest by time, or the smallest or largest. Values of any
    type stay in Arrow's arrays; a group has the number of its value."""

    def __init__(
        self, kind: pa.DataType, order: Callable[[pa.Array, Integers], Any], *, last: bool, timed: bool
    ) -> None:
        """
        Args:
            order: gives what the values are compared by, from them and their times.
            last: the greatest is chosen, not the least; of equal ones, the one that came last.
            timed: the time is a part of the state.
        """
        self.result_type = kind
        self.fields = (("time", pa.int64()), ("value", kind)) if timed else (("value", kind),)
        self._order = order
        self._last = last
        self._timed = timed
        self._values: list[pa.Array] = []
        self._kept = 0
        self._number = np.zeros(0, np.int64)
        self._times = np.zeros(0, np.int64)

    def grow(self, stored: Sequence[pa.Array]) -> None:
        has = ~stored[0].is_null().to_numpy(zero_copy_only=False)
        numbers = np.where(has, np.arange(len(has)) + self._kept, -1)
        self._keep(stored[-1])
        self._number = np.concatenate((self._number, numbers))
        times = _numbers(stored[0]) if self._timed else np.zeros(len(has), np.int64)
        self._times = np.concatenate((self._times, times))

    def _keep(self, values: pa.Array) -> None:
        self._values.append(values)
        self._kept += len(values)

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        touched = np.unique(groups)
        had = touched[self._number[touched] >= 0]
        before = pa.concat_arrays(self._values).take(pa.array(self._number[had])) if len(had) else None
        new: Any = values
        all_values = new if before is None else pa.concat_arrays([before, new.cast(before.type)])
        all_groups, all_times = np.concatenate((had, groups)), np.concatenate((self._times[had], times))
        table = pa.table(
            {"group": all_groups, "by": self._order(all_values, all_times), "row": np.arange(len(all_groups))}
        )
        rows = table.sort_by([("group", "ascending"), ("by", "ascending"), ("row", "ascending")])["row"].to_numpy()
        ordered = all_groups[rows]
        edge = np.flatnonzero(np.diff(ordered))
        ends = np.append(edge, len(rows) - 1) if self._last else np.insert(edge + 1, 0, 0)
        chosen = rows[ends]
        begin = self._kept
        self._keep(all_values.take(pa.array(chosen)))
        self._number[ordered[ends]] = np.arange(begin, self._kept)
        self._times[ordered[ends]] = all_times[chosen]

    def stored(self) -> Sequence[pa.Array]:
        results = self.results()
        return (pa.array(self._times, mask=self._number < 0), results) if self._timed else (results,)

    def results(self) -> pa.Array:
        if not self._values:
            return pa.nulls(0, self.result_type)
        values = pa.concat_arrays([part.cast(self.result_type) for part in self._values])
        return values.take(pa.array(self._number, mask=self._number < 0))


def _by_value(values: pa.Array, times: Integers) -> Any:
    return values


def _by_time(values: pa.Array, times: Integers) -> Any:
    return times


_NUMBER_FORMS: Mapping[int, pa.DataType] = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _plain(column: pa.Array, form: pa.DataType | None) -> Numbers:
    return _numbers(column if form is None else column.view(form))


def _numbers(column: pa.Array) -> Numbers:
    """The numbers of a column, zero for a null; may be changed."""
    found: Numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    return found if found.flags.writeable else found.copy()


def _units(column: pa.Array) -> Numbers:
    """Decimals of 128 bits as whole numbers of their last digit, zero for a null."""
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
        limit = 10**_DIGITS
        if len(units) and not -limit < min(units) <= max(units) < limit:
            raise OverflowError(f"a sum does not fit into {_DIGITS} digits")
        words[1::2] = (units >> 64).astype(np.int64)
        words[::2] = (units & (1 << 64) - 1).astype(np.uint64).view(np.int64)
    else:
        words[::2], words[1::2] = units, units >> 63
    valid = None if absent is None else pa.array(~absent).buffers()[1]
    return pa.Array.from_buffers(kind, len(units), [valid, pa.py_buffer(words)])


def _counts(groups: Integers, count: int) -> Integers:
    found: Integers = np.bincount(groups, minlength=count)
    return found


def _first_rows(groups: Integers) -> Integers:
    """The row of the first occurrence of each group."""
    most = int(groups.max()) + 1 if len(groups) else 0
    first = np.zeros(most, np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]  # of several assignments to one place, numpy keeps the last
    return first[np.unique(groups)] if most > 4 * len(groups) else np.unique(first[groups])


def count_fold(kind: pa.DataType | None) -> Fold:
    return CountFold()


def sum_fold(kind: pa.DataType | None) -> Fold:
    return DecimalSumFold(kind) if _is_decimal(kind) else SumFold(_number(kind))


def mean_fold(kind: pa.DataType | None) -> Fold:
    return DecimalMeanFold(kind) if _is_decimal(kind) else MeanFold(SumFold(_number(kind)))


def variance_fold(kind: pa.DataType | None) -> Fold:
    _number(kind)
    return VarianceFold()


def least_fold(kind: pa.DataType | None) -> Fold:
    return _extreme(kind, largest=False)


def greatest_fold(kind: pa.DataType | None) -> Fold:
    return _extreme(kind, largest=True)


def first_fold(kind: pa.DataType | None) -> Fold:
    return ChosenFold(_known(kind), _by_time, last=False, timed=True)


def last_fold(kind: pa.DataType | None) -> Fold:
    return ChosenFold(_known(kind), _by_time, last=True, timed=True)


def _extreme(kind: pa.DataType | None, *, largest: bool) -> Fold:
    known = _known(kind)
    if (_is_number(known) and not pa.types.is_float16(known)) or pa.types.is_temporal(known):
        return ExtremeFold(known, largest=largest)
    if any(is_one(known) for is_one in _SORTED):
        return ChosenFold(known, _by_value, last=largest, timed=False)
    raise TypeError(f"values of type {known} have no order here")


_SORTED = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_decimal, pa.types.is_boolean)


def _is_decimal(kind: pa.DataType | None) -> bool:
    return kind is not None and bool(pa.types.is_decimal(kind))


def _number(kind: pa.DataType | None) -> pa.DataType:
    if kind is None or not _is_number(kind) or pa.types.is_float16(kind):
        raise TypeError(f"values of type {kind} are no numbers of at most 64 bits")
    return kind


def _known(kind: pa.DataType | None) -> pa.DataType:
    if kind is None:
        raise TypeError("the values have no columns: say which with ps.col(...)")
    return kind
