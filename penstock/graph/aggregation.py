"""Declared aggregates by column: whether they can be computed so, and the states of many groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.api.expressions import Expression
from penstock.api.serdes import Columns, ColumnSerde, Json, Serde
from penstock.api.time.aggregates import Aggregate
from penstock.api.time.sketches import ApproxQuantiles
from penstock.api.time.windows import SPAN_COLUMNS, Aggregates, Window
from penstock.base.plugins import load
from penstock.errors import ConfigError

if TYPE_CHECKING:  # loaded with the first aggregate of columns: the command line does without
    import pyarrow as pa

    from penstock.arrays.byte_arrays import ByteArray, Integers
    from penstock.arrays.entries import Flags

_BY_COLUMN = "penstock.columns.aggregates:column_aggregates"
"""Makes them of rows of a schema: as `column_aggregates` below."""


class ColumnAggregates(ABC):
    """The states of several aggregates, for the groups 0, 1, 2, ..."""

    @property
    @abstractmethod
    def state_fields(self) -> list[pa.Field]:
        """The columns of the stored states."""

    @property
    @abstractmethod
    def result_fields(self) -> list[pa.Field]:
        """The columns of the results."""

    @abstractmethod
    def grow(self, stored: ByteArray, present: Flags | None = None) -> None:
        """Add groups with their stored states, which are new where `present` is false."""

    @abstractmethod
    def values_of(self, rows: pa.StructArray) -> pa.StructArray:
        """The values that the aggregates take of messages: a column for each. Raises pyarrow.ArrowException,
        ArithmeticError or ValueError if an expression fails."""

    @abstractmethod
    def add(self, groups: Integers, values: pa.StructArray, times: Integers) -> None:
        """Add messages to their groups, in order.

        Args:
            groups: of each message.
            values: from `values_of`.
            times: of each message.
        """

    @abstractmethod
    def states(self) -> ByteArray:
        """The states, to be stored."""

    @abstractmethod
    def results(self) -> pa.StructArray:
        """The results of each group. A row is null if one of them does not fit its type: see `UNFIT`."""


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
                raise refused(what, name, each, f"values of type {kind} are no numbers")


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def refused(what: str, name: str, aggregate: Aggregate, why: object) -> ConfigError:
    """The error for an aggregate that does not fit the column of its expression."""
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
    found: ColumnAggregates | None = load(_BY_COLUMN)(aggregates, serde, what)
    return found


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
