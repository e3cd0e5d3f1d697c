"""The serdes of a store, by the names that a checkpoint has, or from the application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.admin.state.aggregate_states import aggregate_states
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
from penstock.api.serdes.numbers import OrderedDouble, OrderedInteger, OrderedLong
from penstock.application.application import Application
from penstock.checkpoint.record import CheckpointRecord, StoreLayout
from penstock.errors import ConfigError
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
