"""Declared aggregates by column: whether they can be computed so, and the states of many groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.api.expressions import Expression
from penstock.api.serdes import Columns, ColumnSerde, Json, Serde
from penstock.api.time.aggregates import (
    Aggregate,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    Variance,
    is_whole_value,
)
from penstock.api.time.sketches import ApproxQuantiles
from penstock.api.time.windows import SPAN_COLUMNS, Aggregates, Window
from penstock.errors import ConfigError

if TYPE_CHECKING:  # loaded with the first aggregate of columns: the command line does without
    import pyarrow as pa

    from penstock.arrays.byte_arrays import ByteArray, Integers
    from penstock.arrays.entries import Flags
    from penstock.columns.fold import Fold

_FOLDS: Mapping[type[Aggregate], str] = {
    Count: "count_fold",
    First: "first_fold",
    Last: "last_fold",
    Max: "greatest_fold",
    Mean: "mean_fold",
    Min: "least_fold",
    Sum: "sum_fold",
    Variance: "variance_fold",
}
"""The functions of `penstock.columns.folds` by aggregate."""


class _Part(NamedTuple):
    name: str
    of: Expression | None
    """None: each message that has a value counts."""
    fold: Fold


class ColumnAggregates:
    """The states of several aggregates, for the groups 0, 1, 2, ..."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        from penstock.columns.state_rows import StateRows

        self._parts = parts
        if parts:
            self._rows = StateRows(self.state_fields, sum(part.fold.has_word for part in parts))

    @property
    def state_fields(self) -> list[pa.Field]:
        """The columns of the stored states."""
        import pyarrow as pa

        return [
            pa.field(f"{number}.{name}", kind)
            for number, part in enumerate(self._parts)
            for name, kind in part.fold.fields
        ]

    @property
    def result_fields(self) -> list[pa.Field]:
        """The columns of the results."""
        import pyarrow as pa

        return [pa.field(part.name, part.fold.result_type) for part in self._parts]

    def grow(self, stored: ByteArray, present: Flags | None = None) -> None:
        """Add groups with their stored states, which are new where `present` is false."""
        states, words = self._rows.unpack(stored, present)
        columns, more = iter(states.flatten()), iter(words)
        for part in self._parts:
            fold = part.fold
            fold.grow([next(columns) for _ in fold.fields], next(more) if fold.has_word else None)

    def values_of(self, rows: pa.StructArray) -> pa.StructArray:
        """The values that the aggregates take of messages: a column for each. Raises pyarrow.ArrowException,
        ArithmeticError or ValueError if an expression fails."""
        import pyarrow as pa

        batch, there = pa.RecordBatch.from_struct_array(rows), rows.is_valid()
        columns = [there if part.of is None else part.of.of_batch(batch) for part in self._parts]
        return pa.StructArray.from_arrays(columns, names=[str(number) for number in range(len(columns))])

    def add(self, groups: Integers, values: pa.StructArray, times: Integers) -> None:
        """Add messages to their groups, in order.

        Args:
            groups: of each message.
            values: from `values_of`.
            times: of each message.
        """
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
        """The states, to be stored."""
        import pyarrow as pa

        columns = [column for part in self._parts for column in part.fold.stored()]
        words = [part.fold.words() for part in self._parts if part.fold.has_word]
        return self._rows.pack(pa.StructArray.from_arrays(columns, fields=self.state_fields), words)

    def results(self) -> pa.StructArray:
        """The results of each group. A row is null if one of them does not fit its type: see `unfit`."""
        import pyarrow as pa

        columns = [part.fold.results() for part in self._parts]
        unfit: Any = None
        for part in self._parts:
            if (more := part.fold.misfits()) is not None:
                unfit = more if unfit is None else unfit | more
        mask = None if unfit is None else pa.array(unfit)
        return pa.StructArray.from_arrays(columns, fields=self.result_fields, mask=mask)


UNFIT = "a sum does not fit its type: one of whole numbers has 64 bits, and one of decimals 38 digits"
"""The reason why there is no result."""


def check_aggregates(aggregates: Mapping[str, Aggregate], serde: Serde[Any], what: str) -> None:
    """Raise ConfigError unless the expressions fit the columns, and quantiles are those of numbers. `what` is the
    declaration, for errors."""
    if not isinstance(serde, ColumnSerde):
        return
    for name, each in aggregates.items():
        if isinstance(each.of, Expression):
            kind = each.of.type_in(serde.schema, f"{what}: `{name}`")
            if type(each) is ApproxQuantiles and not _is_number(kind):
                raise _refused(what, name, each, f"values of type {kind} are no numbers")


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _refused(what: str, name: str, aggregate: Aggregate, why: object) -> ConfigError:
    return ConfigError(
        f"{what}: `{name}`: {type(aggregate).__name__} of `{aggregate.of}`: {why}. Take a function of the row in place "
        "of the expression, or another column"
    )


def column_aggregates(
    aggregates: Mapping[str, Aggregate], serde: Serde[Any], what: str = "aggregate()"
) -> ColumnAggregates | None:
    """The aggregates, of no group yet, if all of them can be computed by column; None if messages are added one at a
    time.

    Args:
        aggregates: by name.
        serde: of the messages' values.
        what: the declaration, for errors.

    Raises:
        ConfigError: the type of a column does not fit its aggregate.
    """
    if not isinstance(serde, ColumnSerde):
        return None
    from penstock.columns import folds

    found = []
    for name, each in aggregates.items():
        fold, of = _FOLDS.get(type(each)), each.of
        counts_all = type(each) is Count and is_whole_value(of)
        if fold is None or not (counts_all or isinstance(of, Expression)):
            return None
        expression = of if isinstance(of, Expression) else None
        kind = None if expression is None else expression.type_in(serde.schema, f"{what}: `{name}`")
        try:
            found.append(_Part(name, expression, getattr(folds, fold)(kind)))
        except (TypeError, ValueError) as error:
            raise _refused(what, name, each, error) from None
    return ColumnAggregates(found)


def columns_of(aggregates: Mapping[str, Aggregate]) -> frozenset[str]:
    """The columns that the expressions of aggregates read."""
    expressions: list[Any] = [each.of for each in aggregates.values()]
    return frozenset(name for each in expressions if isinstance(each, Expression) for name in each.columns)


def window_aggregates(window: Window, serde: Serde[Any]) -> ColumnAggregates | None:
    """As `column_aggregates`, of a window: one of a shape that has a form by column, and of event time, for each key,
    that fires once."""
    is_plain = window.early is None and window.allowed_lateness_ms == 0 and window.keyed and window.time == "event"
    if not (is_plain and window.shape.column_node and isinstance(window.contents, Aggregates)):
        return None
    return column_aggregates(window.contents.by_name, serde, "window()")


def serde_of_rows(window: Window, by_column: ColumnAggregates | None) -> Serde[Any]:
    """The serde of panes as rows.

    Args:
        by_column: the window's aggregates, if they are computed by column.

    Raises:
        ConfigError: the panes of the window are no rows.
    """
    if not isinstance(window.contents, Aggregates) or window.shape.counts:
        raise ConfigError(
            "window(rows=True): a row has the window's span of time and its aggregates, so the window needs "
            "aggregates={...} and must not count messages"
        )
    if twice := sorted(window.contents.by_name.keys() & set(SPAN_COLUMNS)):
        raise ConfigError(f"window(rows=True): `{twice[0]}` is a column of each row: give the aggregate another name")
    if by_column is None:
        return Json()
    import pyarrow as pa

    span = [pa.field(name, pa.int64()) for name in SPAN_COLUMNS]
    return Columns(pa.schema([*span, *by_column.result_fields]))


def definition_of(aggregates: Mapping[str, Aggregate], serde: Serde[Any]) -> str:
    """The properties that the bytes of an aggregate's store depend on, as one word."""
    by_column = column_aggregates(aggregates, serde)
    kinds = [f"{name}={type(each).__qualname__}" for name, each in aggregates.items()]
    if by_column is None:
        return f"aggregate({','.join(kinds)})"
    return f"aggregate-columns({','.join(kinds)}:{types_of(by_column)})".replace(" ", "")


def types_of(aggregates: ColumnAggregates) -> str:
    """The types of the stored states, as one word."""
    return ",".join(str(field.type) for field in aggregates.state_fields).replace(" ", "")
