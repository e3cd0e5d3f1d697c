"""From the state of PySpark's transformWithState to the entries of a processor's stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeAlias

from pyspark.sql.types import StructType

from penstock.api.timers import timers_store
from penstock.errors import IncompatibleError
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.declared import Variable
from penstock.spark.processor.keys import KeyCodec
from penstock.spark.processor.lists import StoredLists
from penstock.spark.processor.task import ProcessorSpec
from penstock.spark.processor.timers import ProcessorTimers
from penstock.state.spark.schema import EntrySchema
from penstock.state.spark.types import Struct
from penstock.state.spark.unsafe_row import unreadable
from penstock.state.stores.expiry import META, engine_key, header, index_key, meta_bytes

OwnedEntry: TypeAlias = tuple[bytes, bytes, bytes]
"""The encoded grouping key that the entry belongs to; the entry's key and value in the store's engine."""
Convert: TypeAlias = Callable[[dict[str, Any], Any], Iterable[OwnedEntry]]
"""From Spark's key and value, decoded."""

KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
"""Spark's words for the kinds of state variables."""
TIMERS = {"processingtime": "$procTimers_keyToTimestamp", "eventtime": "$eventTimers_keyToTimestamp"}
"""Where Spark has the timers of a processor, by its time mode."""
_FOREVER = 0


def variable_entries(spec: ProcessorSpec, variable: Variable, found: EntrySchema) -> Convert:
    """How entries of a state variable become those of its store.

    Args:
        spec: the processor.
        variable: as the processor declares it.
        found: the schema of Spark's state.

    Raises:
        IncompatibleError: the state has other fields than the processor declares.
    """
    keys, rows = KeyCodec(spec.key), RowCodec(variable.schema, variable.name)
    key_found, value_found = found.key, found.value
    user_keys: KeyCodec | None = None
    if variable.user_key is not None:
        key_found, user_found = _part(found.key, 0), _part(found.key, 1)
        user_keys = KeyCodec(variable.user_key, f"{variable.name}.key")
        _check(variable.name, "the keys of the map", user_found, variable.user_key)
    if variable.ttl_ms is not None:
        value_found = _part(found.value, 0)
    _check(variable.name, "the grouping key", key_found, spec.key)
    _check(variable.name, "its values", value_found, variable.schema)
    write = _plain if variable.ttl_ms is None else _expiring
    added = (None,) * (len(variable.schema.fields) - len(value_found.columns))

    def row_of(value: dict[str, Any]) -> tuple[bytes, int]:
        """The bytes of a row, and when it expires."""
        if variable.ttl_ms is None:
            return rows.encode(_values(value) + added), _FOREVER
        return rows.encode(_values(value["value"]) + added), value["ttlExpirationMs"]

    def of_value(key: dict[str, Any], value: dict[str, Any]) -> Iterator[OwnedEntry]:
        owner = keys.encode(_values(key))
        yield from write(owner, owner, *row_of(value))

    def of_map(key: dict[str, Any], value: dict[str, Any]) -> Iterator[OwnedEntry]:
        owner = keys.encode(_values(key["key"]))
        assert user_keys is not None, "a map has keys"  # noqa: S101
        yield from write(owner, owner + user_keys.encode(_values(key["userKey"])), *row_of(value))

    def of_list(key: dict[str, Any], value: list[dict[str, Any]]) -> Iterator[OwnedEntry]:
        owner, gathered = keys.encode(_values(key)), _Gathered()
        lists = StoredLists(gathered, variable.ttl_ms, lambda: gathered.now_ms)  # type: ignore[arg-type]
        for expires_ms, elements in groupby(map(row_of, value), key=lambda each: each[1]):
            gathered.now_ms = expires_ms - (variable.ttl_ms or 0)
            lists.append(owner, [data for data, _ in elements])
        for place, (data, now_ms) in gathered.entries.items():
            yield from write(owner, place, data, now_ms + (variable.ttl_ms or 0))

    found_by_kind: dict[str, Convert] = {"value": of_value, "map": of_map, "list": of_list}
    return found_by_kind[variable.kind]


def timer_entries(spec: ProcessorSpec) -> Convert:
    """How Spark's timers become those of the processor."""
    keys = KeyCodec(spec.key)

    def convert(key: dict[str, Any], value: Any) -> Iterator[OwnedEntry]:
        owner, gathered = keys.encode(_values(key["key"])), _Gathered()
        domain = "event" if spec.mode == "eventtime" else "processing"
        ProcessorTimers(gathered, domain).register(owner, key["expiryTimestampMs"])  # type: ignore[arg-type]
        for place, (data, _) in gathered.entries.items():
            yield owner, place, data

    return convert


def timers_of(spec: ProcessorSpec) -> str:
    """The store of the processor's timers."""
    return timers_store(spec.operator)


def heads(variable: Variable) -> dict[bytes, bytes]:
    """What the store of a variable has in each task besides its entries."""
    return {} if variable.ttl_ms is None else {META: meta_bytes(None)}


def _check(variable: str, what: str, found: Struct, declared: StructType) -> None:
    """The names and types must be equal; the processor may have more fields at the end."""
    for number, column in enumerate(found.columns):
        if (why := unreadable(column.type)) is not None:
            raise IncompatibleError(f"state variable `{variable}`: field `{column.name}` cannot be taken over: {why}")
        fields = declared.fields
        same = number < len(fields) and (
            (fields[number].name, fields[number].dataType.simpleString()) == (column.name, str(column.type))
        )
        if not same or (len(fields) > len(found.columns) and what != "its values"):
            raise IncompatibleError(
                f"state variable `{variable}`: {what} are {found} in the query's state, and the processor declares "
                f"{declared.simpleString()}: declare what the state has. More fields may follow in values"
            )


def _part(row: Struct, number: int) -> Struct:
    found = row.columns[number].type
    if not isinstance(found, Struct):
        raise IncompatibleError(f"{row} is no state of a transformWithState")
    return found


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.values())


def _plain(owner: bytes, key: bytes, data: bytes, expires_ms: int) -> Iterator[OwnedEntry]:
    yield owner, key, data


def _expiring(owner: bytes, key: bytes, data: bytes, expires_ms: int) -> Iterator[OwnedEntry]:
    """An entry of a store with a time to live: with its header, and a place in the index."""
    place, written = engine_key(key), header(expires_ms, 0) + data
    yield owner, place, written
    yield owner, index_key(written, place), b""


class _Gathered:
    """A store that keeps what is written, and the time at which it was."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[bytes, int]] = {}
        self.now_ms = 0

    def get(self, key: bytes) -> bytes | None:
        found = self.entries.get(key)
        return None if found is None else found[0]

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = (value, self.now_ms)
