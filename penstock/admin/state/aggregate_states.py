"""The states of declared aggregates, from the bytes of their store and its definition alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.serdes import Serde
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.types import types_of_text
from penstock.base.exact_json import exact_value
from penstock.columns.aggregates import state_columns
from penstock.columns.fold import StateRows, has_word
from penstock.columns.sums import whole_sum
from penstock.graph.aggregation import AggregateLayout


class _States(Serde[dict[str, Any]]):
    def to_bytes(self, obj: dict[str, Any]) -> bytes:
        raise TypeError("states of aggregates are only read")


class JsonStates(_States):
    """States of messages that are added one at a time: a list."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        return dict(zip(self._names, exact_value(data), strict=True))


class ColumnStates(_States):
    """States in columns: a packed row. Each aggregate has a dict of its columns."""

    def __init__(self, columns: Sequence[tuple[str, str]], types: Sequence[pa.DataType]) -> None:
        """`columns`: the aggregate of each column, and the column's name."""
        self._columns = columns
        self._sums = [
            number
            for number, ((_, column), kind) in enumerate(zip(columns, types, strict=True))
            if has_word(column, kind)
        ]
        self._rows = StateRows([pa.field(str(number), kind) for number, kind in enumerate(types)], len(self._sums))

    def from_bytes(self, data: bytes) -> dict[str, Any]:
        rows, words = self._rows.unpack(ByteArray.of(pa.array([data], pa.large_binary())))
        row = rows[0].as_py()
        for number, word in zip(self._sums, words, strict=True):
            if word[0]:
                row[str(number)] = whole_sum(row[str(number)], int(word[0]))
        found: dict[str, dict[str, Any]] = {}
        for (aggregate, column), value in zip(self._columns, row.values(), strict=True):
            found.setdefault(aggregate, {})[column] = value
        return found


def aggregate_states(definition: str) -> _States | None:
    """Reads the values of a store with this definition; None if it has no declared aggregates, or a column of a
    nested type.

    Example:
        >>> aggregate_states("aggregate(flights=Count,miles=Mean)").from_bytes(b"[2,[1490,2]]")
        {'flights': 2, 'miles': [1490, 2]}
    """
    layout = AggregateLayout.parse(definition)
    if layout is None:
        return None
    if layout.types is None:
        return JsonStates([name for name, _ in layout.kinds])
    of_kinds = state_columns()
    columns = [(name, column) for name, kind in layout.kinds for column in of_kinds.get(kind, ())]
    try:
        types = types_of_text(layout.types)
        return ColumnStates(columns, types) if len(columns) == len(types) else None
    except (TypeError, ValueError):
        return None
