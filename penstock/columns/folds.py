"""The folds of declared aggregates, by the type of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays.byte_arrays import Integers
from penstock.columns.fold import ColumnFold, CountFold, Numbers, numbers_of
from penstock.columns.sums import DecimalMeanFold, DecimalSumFold, FloatSumFold, IntegerSumFold, MeanFold, VarianceFold


class ExtremeFold(ColumnFold):
    """The smallest or the largest of numbers and times. NaN counts only where there is nothing else."""

    def __init__(self, kind: pa.DataType, *, largest: bool) -> None:
        self.result_type = kind
        self.fields = (("value", kind),)
        self._form = _NUMBER_FORMS[kind.bit_width] if not _is_number(kind) else None
        self._values: Numbers = _plain(pa.nulls(0, kind), self._form)
        self._has = np.zeros(0, np.bool_)
        self._floating = pa.types.is_floating(kind)
        of_floats, of_others = (np.fmax, np.maximum) if largest else (np.fmin, np.minimum)
        self._best: Any = of_floats if self._floating else of_others

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        self._has = np.concatenate((self._has, ~stored[0].is_null().to_numpy(zero_copy_only=False)))
        self._values = np.concatenate((self._values, _plain(stored[0], self._form)))

    def add(self, groups: Integers, values: pa.Array | None, times: Integers) -> None:
        numbers = _plain(values.cast(self.result_type), self._form)  # type: ignore[union-attr]
        if self._floating:
            numbers = numbers + numbers.dtype.type(0)  # which makes 0.0 of -0.0, of which neither is the smaller one
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


class ChosenFold(ColumnFold):
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

    def grow(self, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        has = ~stored[0].is_null().to_numpy(zero_copy_only=False)
        numbers = np.where(has, np.arange(len(has)) + self._kept, -1)
        self._keep(stored[-1])
        self._number = np.concatenate((self._number, numbers))
        times = numbers_of(stored[0]) if self._timed else np.zeros(len(has), np.int64)
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
    return numbers_of(column if form is None else column.view(form))


def _first_rows(groups: Integers) -> Integers:
    """The row of the first occurrence of each group."""
    most = int(groups.max()) + 1 if len(groups) else 0
    first = np.zeros(most, np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]  # of several assignments to one place, numpy keeps the last
    return first[np.unique(groups)] if most > 4 * len(groups) else np.unique(first[groups])


def count_fold(kind: pa.DataType | None) -> ColumnFold:
    return CountFold()


def sum_fold(kind: pa.DataType | None) -> ColumnFold:
    return DecimalSumFold(kind) if _is_decimal(kind) else _sum_of_numbers(_number(kind))


def mean_fold(kind: pa.DataType | None) -> ColumnFold:
    return DecimalMeanFold(kind) if _is_decimal(kind) else MeanFold(_sum_of_numbers(_number(kind)))


def variance_fold(kind: pa.DataType | None) -> ColumnFold:
    if not _is_decimal(kind):
        _number(kind)
    return VarianceFold()


def least_fold(kind: pa.DataType | None) -> ColumnFold:
    return _extreme(kind, largest=False)


def greatest_fold(kind: pa.DataType | None) -> ColumnFold:
    return _extreme(kind, largest=True)


def first_fold(kind: pa.DataType | None) -> ColumnFold:
    return ChosenFold(_known(kind), _by_time, last=False, timed=True)


def last_fold(kind: pa.DataType | None) -> ColumnFold:
    return ChosenFold(_known(kind), _by_time, last=True, timed=True)


def _sum_of_numbers(kind: pa.DataType) -> IntegerSumFold | FloatSumFold:
    return IntegerSumFold(kind) if pa.types.is_integer(kind) else FloatSumFold()


def _extreme(kind: pa.DataType | None, *, largest: bool) -> ColumnFold:
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
