"""Aggregates of rows by column: each has a fold, which the type of its values decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.api.expressions import Expression
from penstock.api.serdes import ColumnSerde
from penstock.api.time.aggregates import Aggregate, Count, form_by_column, is_whole_value
from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.entries import Flags
from penstock.arrays.packed_rows import PackedRows
from penstock.base.plugins import load
from penstock.columns.folds import (
    ColumnFold,
    CountFold,
    DecimalMeanFold,
    DecimalSumFold,
    FloatSumFold,
    IntegerSumFold,
    MeanFold,
    Numbers,
    numbers_of,
)
from penstock.columns.variance import VarianceFold
from penstock.graph.aggregation import ColumnAggregates, refused

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


class NamedFold(NamedTuple):
    """One of several aggregates."""

    name: str
    of: Expression | None
    """None: each message that has a value counts."""
    fold: ColumnFold


class FoldedAggregates(ColumnAggregates):
    """Aggregates that each have a fold."""

    def __init__(self, parts: Sequence[NamedFold]) -> None:
        self._parts = parts
        self._rows = StateRows(self.state_fields, sum(part.fold.has_word for part in parts))

    @property
    def state_fields(self) -> list[pa.Field]:
        return [
            pa.field(f"{number}.{name}", kind)
            for number, part in enumerate(self._parts)
            for name, kind in part.fold.fields
        ]

    @property
    def result_fields(self) -> list[pa.Field]:
        return [pa.field(part.name, part.fold.result_type) for part in self._parts]

    def grow(self, stored: ByteArray, present: Flags | None = None) -> None:
        for fold, columns, words in self._unpacked(stored, present):
            fold.grow(columns, words)

    def merge(self, groups: Integers, stored: ByteArray) -> None:
        for fold, columns, words in self._unpacked(stored):
            fold.merge(groups, columns, words)

    def _unpacked(
        self, stored: ByteArray, present: Flags | None = None
    ) -> Iterator[tuple[ColumnFold, list[pa.Array], Integers | None]]:
        """Each fold, with its columns and words of stored states."""
        states, words = self._rows.unpack(stored, present)
        columns, more = iter(states.flatten()), iter(words)
        for part in self._parts:
            fold = part.fold
            yield fold, [next(columns) for _ in fold.fields], next(more) if fold.has_word else None

    def values_of(self, rows: pa.StructArray) -> pa.StructArray:
        batch, there = pa.RecordBatch.from_struct_array(rows), rows.is_valid()
        columns = [there if part.of is None else part.of.of_batch(batch) for part in self._parts]
        return pa.StructArray.from_arrays(columns, names=[str(number) for number in range(len(columns))])

    def add(self, groups: Integers, values: pa.StructArray, times: Integers) -> None:
        for part, column in zip(self._parts, values.flatten(), strict=True):
            counted = column if part.of is not None else column.filter(column)
            there: Any = None
            if part.of is None:
                there = column.to_numpy(zero_copy_only=False)
            elif column.null_count:
                there, counted = ~column.is_null().to_numpy(zero_copy_only=False), column.drop_null()
            if len(counted):
                some = slice(None) if there is None or there.all() else there
                part.fold.add(groups[some], None if part.of is None else counted, times[some])

    def states(self) -> ByteArray:
        columns = [column for part in self._parts for column in part.fold.stored()]
        words = [part.fold.words() for part in self._parts if part.fold.has_word]
        return self._rows.pack(pa.StructArray.from_arrays(columns, fields=self.state_fields), words)

    def results(self) -> pa.StructArray:
        columns = [part.fold.results() for part in self._parts]
        unfit: Any = None
        for part in self._parts:
            if (more := part.fold.misfits()) is not None:
                unfit = more if unfit is None else unfit | more
        mask = None if unfit is None else pa.array(unfit)
        return pa.StructArray.from_arrays(columns, fields=self.result_fields, mask=mask)


def column_aggregates(aggregates: Mapping[str, Aggregate], serde: ColumnSerde, what: str) -> FoldedAggregates | None:
    """As `penstock.graph.aggregation.column_aggregates`, of rows of a schema."""
    found = []
    for name, each in aggregates.items():
        form, of = form_by_column(type(each)), each.of
        counts_all = type(each) is Count and is_whole_value(of)
        if not form or not (counts_all or isinstance(of, Expression)):
            return None
        expression = of if isinstance(of, Expression) else None
        kind = None if expression is None else expression.type_in(serde.schema, f"{what}: `{name}`")
        try:
            found.append(NamedFold(name, expression, _fold(form, kind)))
        except (TypeError, ValueError) as error:
            raise refused(what, name, each, error) from None
    return FoldedAggregates(found)


def _fold(form: str, kind: pa.DataType | None) -> ColumnFold:
    """The fold for values of this type. Raises TypeError or ValueError if it does not have them."""
    fold: ColumnFold = load(form)(kind)
    return fold


def state_columns() -> dict[str, tuple[str, ...]]:
    """Kind of an aggregate → the columns of its state, whose names do not depend on the type of its values."""
    forms = {kind.__qualname__: form for kind in Aggregate.__subclasses__() if (form := form_by_column(kind))}
    return {kind: tuple(name for name, _ in _fold(form, pa.int64()).fields) for kind, form in forms.items()}


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

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        there = stored[0].is_valid().to_numpy(zero_copy_only=False)
        self.add(groups[there], stored[0].drop_null(), groups)

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

    def merge(self, groups: Integers, stored: Sequence[pa.Array], words: Integers | None = None) -> None:
        there = stored[0].is_valid().to_numpy(zero_copy_only=False)
        times = numbers_of(stored[0]) if self._timed else np.zeros(len(groups), np.int64)
        if there.any():
            self.add(groups[there], stored[-1].filter(pa.array(there)), times[there])

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
