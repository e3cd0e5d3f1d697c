"""The serdes of a store by their names, and those of the states of aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.serdes import (
    Bytes,
    JsonKey,
    PackedColumns,
    SamzaDouble,
    SamzaInteger,
    SamzaLong,
    Serde,
    String,
    Tuple,
)
from penstock.api.serdes.values import OrderedDouble, OrderedInteger, OrderedLong
from penstock.application.application import Application
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.types import types_of_text
from penstock.base.exact_json import exact_value
from penstock.checkpoint.record import CheckpointRecord, StoreLayout
from penstock.columns.aggregates import state_columns
from penstock.columns.fold import StateRows, has_word
from penstock.columns.sums import whole_sum
from penstock.errors import ConfigError
from penstock.graph.aggregation import AggregateLayout
from penstock.graph.event_time import VersionKey, VersionValue
from penstock.schemas.avro import AvroState
from penstock.state.reading.reader import check_store

_BUILT_IN: Mapping[str, Serde[Any]] = {
    serde.name: serde
    for serde in (
        Bytes(),
        String(),
        OrderedInteger(),
        OrderedLong(),
        OrderedDouble(),
        SamzaInteger(),
        SamzaLong(),
        SamzaDouble(),
        JsonKey(),
    )
}


@dataclass(frozen=True, slots=True)
class StoreSerdes:
    """The serdes of a store, and their names. One that is not Penstock's is known from the application only."""

    key_name: str
    value_name: str
    key: Serde[Any] | None
    value: Serde[Any] | None


def store_serdes(
    record: CheckpointRecord, store: str, app: Application | None = None, called: str | None = None
) -> StoreSerdes:
    """The serdes of a store: those that the checkpoint names, or those of the application.

    Args:
        record: the checkpoint.
        store: the store.
        app: the application, for serdes that are not Penstock's.
        called: what messages call the application; its name, if None.

    Raises:
        NotFoundError: the checkpoint has no such store.
        ConfigError: the application has not this store with these serdes.
    """
    check_store(record, store)
    layout = StoreLayout.parse(record.stores[store])
    key, value = layout.key, layout.value
    if app is None:
        return StoreSerdes(key, value, serde_of(key), serde_of(value))
    called = called or app.name
    specs = {spec.name: spec for spec in app.graph().stores}
    if store not in specs:
        raise ConfigError(f"`{called}` declares no store `{store}`; it has: {', '.join(specs) or 'none'}")
    own = specs[store]
    if (own.key_serde.name, own.value_serde.name) != (key, value):
        raise ConfigError(
            f"store `{store}` was written with the serdes `{key}` and `{value}` (checkpoint {record.id}); `{called}` "
            f"declares `{own.key_serde.name}` and `{own.value_serde.name}`"
        )
    return StoreSerdes(key, value, own.key_serde, aggregate_states(value) or own.value_serde)


def serde_of(name: str) -> Serde[Any] | None:
    """The serde of a name that a checkpoint has, if it is one of Penstock's."""
    if (states := aggregate_states(name)) is not None:
        return states
    kind, bracket, inner = name.partition("(")
    if not (bracket and name.endswith(")")):
        return _BUILT_IN.get(name)
    if kind == "columns":
        return _rows(inner[:-1])
    if kind == "avro":
        return AvroState.named(name)
    fields = [serde_of(field) for field in _split(inner[:-1])]
    known = [field for field in fields if field is not None]
    if len(known) < len(fields):
        return None
    match kind:
        case "tuple":
            return Tuple(*known) if all(field.ordered for field in known) else None
        case "version-key":
            return VersionKey(known[0])
        case "version":
            return VersionValue(known[0])
    return None


def _rows(columns: str) -> PackedColumns | None:
    """The serde of rows with these columns, if their types have names that Arrow reads."""

    fields = []
    for text in columns.replace("%20", " ").split(","):
        name, _, kind = text.rpartition(":")
        try:
            fields.append(pa.field(name, pa.type_for_alias(kind.removesuffix("!")), nullable=not kind.endswith("!")))
        except ValueError:
            return None
    return PackedColumns(pa.schema(fields))


def _split(names: str) -> list[str]:
    """The names between the commas, those inside of brackets left alone."""
    parts, depth = [""], 0
    for character in names:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


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
