"""Aggregates of rows by column: each has a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.api.expressions import Expression
from penstock.api.serdes import ColumnSerde
from penstock.api.time.aggregates import Aggregate, Count, form_by_column, is_whole_value
from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.entries import Flags
from penstock.base.plugins import load
from penstock.columns.fold import ColumnFold
from penstock.columns.state_rows import StateRows
from penstock.graph.aggregation import ColumnAggregates, refused


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
        states, words = self._rows.unpack(stored, present)
        columns, more = iter(states.flatten()), iter(words)
        for part in self._parts:
            fold = part.fold
            fold.grow([next(columns) for _ in fold.fields], next(more) if fold.has_word else None)

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
