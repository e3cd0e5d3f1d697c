"""Declared aggregates by column, and the definitions of the stores of aggregates and windows.

It is said here whether aggregates can be computed by column, and the states of many groups are kept so. A definition
is one word with the properties that a store's bytes depend on. A checkpoint has the word, and a start refuses
another one, so the words of before must stay as they are. Each form is declared once; it writes the word and reads
it. Arrow is imported in the functions that need it: an application without columns starts without it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.api.expressions import Expression
from penstock.api.serdes import Columns, ColumnSerde, Json, Serde
from penstock.api.time.aggregates import Aggregate
from penstock.api.time.firing import SPAN_COLUMNS
from penstock.api.time.sketches import ApproxQuantiles
from penstock.api.time.windows import Aggregates, Window
from penstock.base.plugins import load
from penstock.errors import ConfigError

if TYPE_CHECKING:
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
    def merge(self, groups: Integers, stored: ByteArray) -> None:
        """Add states, as others have stored them, to those of their groups, in order: as if their messages had been
        added, but for the order in which floats are summed."""

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


_KIND = r"[^,=:]+=[^,=:]+"


class _Form:
    """A word with fields in it."""

    def __init__(self, word: str, **patterns: str) -> None:
        """
        Args:
            word: the word, with `{name}` for a field.
            patterns: regular expressions of fields; without one, a field is any text.
        """
        self._word = word
        fixed_and_fields = enumerate(re.split(r"\{(\w+)\}", word))
        self._pattern = re.compile(
            "".join(
                f"(?P<{part}>{patterns.get(part, '.*')})" if n % 2 else re.escape(part) for n, part in fixed_and_fields
            )
        )

    def write(self, **fields: object) -> str:
        return self._word.format(**fields)

    def read(self, word: str) -> Mapping[str, str] | None:
        found = self._pattern.fullmatch(word)
        return None if found is None else found.groupdict()


_KINDS = {"kinds": rf"{_KIND}(?:,{_KIND})*"}
_ROWS = _Form("aggregate({kinds})", **_KINDS)
_COLUMNS = _Form("aggregate-columns({kinds}:{types})", types=".+", **_KINDS)
_WINDOW = "{shape}:{time}:{kinds}:{key}:early={early}:late={late}:{panes}:lateness={lateness}"
_WINDOW_BY_ROW = _Form(_WINDOW)
_WINDOW_BY_COLUMN = _Form(
    f"{_WINDOW}:columns={{types}}", shape=r"[A-Z]\w*\([^)]*\)", time="event", types=".+", **_KINDS
)


def aggregates_definition(aggregates: Mapping[str, Aggregate], by_column: ColumnAggregates | None) -> str:
    """The definition of the store of an `aggregate`. `by_column`: None if messages are added one at a time."""
    if by_column is None:
        return _ROWS.write(kinds=_text_of(aggregates))
    return _COLUMNS.write(kinds=_text_of(aggregates), types=_types(by_column)).replace(" ", "")


def window_definition(
    window: Window, key: Serde[Any], message: Serde[Any], by_column: ColumnAggregates | None = None
) -> str:
    """The definition of the store of a window. Functions are left out: they may change."""
    if window.keeps_messages:
        kinds = f"messages({message.name})"
    elif isinstance(window.contents, Aggregates):
        kinds = _text_of(window.contents.by_name)
    else:
        kinds = f"fold({window.value.name})"
    fields = {
        "shape": window.shape,
        "time": window.time,
        "kinds": kinds,
        "key": key.name if window.keyed else "task",
        "early": window.early,
        "late": window.late,
        "panes": "accumulating" if window.accumulating else "discarding",
        "lateness": window.allowed_lateness_ms,
    }
    if by_column is None:
        return _WINDOW_BY_ROW.write(**fields).replace(" ", "")
    return _WINDOW_BY_COLUMN.write(types=_types(by_column), **fields).replace(" ", "")


@dataclass(frozen=True, slots=True)
class AggregateLayout:
    """The aggregates of a store, as its definition has them."""

    kinds: tuple[tuple[str, str], ...]
    """The name of each, and the name of its class."""
    types: str | None
    """The types of the columns of their states; None: a state is a list with a value for each aggregate."""

    @classmethod
    def parse(cls, definition: str) -> AggregateLayout | None:
        """The aggregates of a definition; None if it has no declared ones, or keeps no states of them alone.

        Example:
            >>> AggregateLayout.parse("aggregate-columns(flights=Count,miles=Sum:int64,int64)")
            AggregateLayout(kinds=(('flights', 'Count'), ('miles', 'Sum')), types='int64,int64')
        """
        found = _ROWS.read(definition) or _COLUMNS.read(definition) or _WINDOW_BY_COLUMN.read(definition)
        return None if found is None else cls(_kinds(found["kinds"]), found.get("types"))


def _text_of(aggregates: Mapping[str, Aggregate]) -> str:
    return ",".join(f"{name}={type(each).__qualname__}" for name, each in aggregates.items())


def _kinds(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name, _, kind in (part.partition("=") for part in text.split(",")))


def _types(by_column: ColumnAggregates) -> str:
    from penstock.arrays.types import text_of_types

    return text_of_types(field.type for field in by_column.state_fields)
