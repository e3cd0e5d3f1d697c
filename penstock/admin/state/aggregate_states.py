"""The states of declared aggregates, from the bytes of their store and its definition alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.serdes import Serde
from penstock.arrays.byte_arrays import ByteArray
from penstock.columns.aggregates import state_columns
from penstock.columns.state_rows import StateRows
from penstock.columns.sums import whole_sum
from penstock.exact_json import exact_value

_KINDS = r"([^,=:]+=[^,=:]+(?:,[^,=:]+=[^,=:]+)*)"
"""The names of aggregates with their kinds, as `flights=Count,miles=Sum`."""
_OF_ROWS = re.compile(rf"aggregate\({_KINDS}\)")
_OF_COLUMNS = re.compile(rf"aggregate-columns\({_KINDS}:(.+)\)")
_OF_WINDOWS = re.compile(rf"[A-Z]\w*\([^)]*\):event:{_KINDS}:.*:columns=(.+)")
_BETWEEN_TYPES = re.compile(r",(?![^(\[<]*[)\]>])")
"""A comma that is not inside of brackets."""
_DECIMAL = re.compile(r"decimal(128|256)\((\d+),(-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns),tz=(.+)\]")


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
            if column == "sum" and not pa.types.is_floating(kind)
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
    if found := _OF_ROWS.fullmatch(definition):
        return JsonStates([name for name, _ in _kinds(found[1])])
    if found := _OF_COLUMNS.fullmatch(definition) or _OF_WINDOWS.fullmatch(definition):
        return _column_states(_kinds(found[1]), _BETWEEN_TYPES.split(found[2]))
    return None


def _kinds(text: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (part.partition("=") for part in text.split(","))]


def _column_states(kinds: Sequence[tuple[str, str]], types: Sequence[str]) -> ColumnStates | None:
    of_kinds = state_columns()
    columns = [(name, column) for name, kind in kinds for column in of_kinds.get(kind, ())]
    if len(columns) != len(types):
        return None
    try:
        return ColumnStates(columns, [_type_named(each) for each in types])
    except (TypeError, ValueError):
        return None


def _type_named(name: str) -> pa.DataType:
    """Raises ValueError if it is a nested type."""
    if decimal := _DECIMAL.fullmatch(name):
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    if zoned := _ZONED.fullmatch(name):
        return pa.timestamp(zoned[1], zoned[2])
    return pa.type_for_alias(name)
