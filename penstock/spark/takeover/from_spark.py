"""From the state of PySpark's transformWithState to the entries of a processor's stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    UserDefinedType,
    VariantType,
)

from penstock.errors import IncompatibleError
from penstock.spark.processor.declared import Variable
from penstock.spark.processor.task import ProcessorSpec
from penstock.spark.processor.timers import ProcessorTimers
from penstock.spark.processor.values.codec import RowCodec
from penstock.spark.processor.values.keys import KeyCodec
from penstock.spark.processor.values.lists import StoredLists
from penstock.spark.processor.values.rows import values_of
from penstock.spark.versions import arrow_type
from penstock.state.stores.expiry import META, engine_key, header, index_key, meta_bytes

OwnedEntry: TypeAlias = tuple[bytes, bytes, bytes]
"""The encoded grouping key that the entry belongs to; the entry's key and value in the store's engine."""
Convert: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[OwnedEntry]]
"""Converts the rows of a state variable in Spark's reader, in their order. Picklable."""

KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
"""Spark's words for the kinds of state variables."""
TIMERS = {"processingtime": "$procTimers_keyToTimestamp", "eventtime": "$eventTimers_keyToTimestamp"}
"""Time mode → Spark's name of a processor's timers."""
_VALUES = {"value": "value", "list": "list_element", "map": "user_map_value"}
"""Kind of the variable → the reader's column of its values."""
_USER_KEY = "user_map_key"
_FOREVER = 0


def variable_entries(spec: ProcessorSpec, variable: Variable, found: StructType) -> VariableEntries:
    """The conversion of a state variable's rows to entries of its store.

    Args:
        spec: the processor.
        variable: as the processor declares it.
        found: the columns of Spark's reader.

    Raises:
        IncompatibleError: the state has other fields than the processor declares, or one that cannot be read.
    """
    value = _struct(found, _VALUES[variable.kind])
    if variable.ttl_ms is not None:
        value = _struct(value, "value")
    if variable.user_key is not None:
        _check(variable.name, "the keys of the map", _struct(found, _USER_KEY), variable.user_key)
    _check(variable.name, "the grouping key", _struct(found, "key"), spec.key)
    _check(variable.name, "its values", value, variable.schema)
    return VariableEntries(spec.key, variable, len(value.fields))


@dataclass(frozen=True, slots=True)
class VariableEntries:
    """Makes entries of the rows of a state variable. See `Convert`."""

    key: StructType
    variable: Variable
    fields: int
    """Number of fields of the values. The variable may have more after them, which are None."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[OwnedEntry]:
        rows = self._rows(batches)
        if self.variable.kind == "list":
            return self._of_lists(rows)
        return _plain(rows) if self.variable.ttl_ms is None else _expiring(rows)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes, bytes, int]]:
        variable, keys = self.variable, KeyCodec(self.key)
        user_keys = None if variable.user_key is None else KeyCodec(variable.user_key, f"{variable.name}.key")
        encode = RowCodec(variable.schema, variable.name).encode
        added = len(variable.schema.fields) - self.fields
        for batch in batches:
            owners = places = keys.encode_arrays(batch.column("key").flatten()).to_pylist()
            if user_keys is not None:
                own = user_keys.encode_arrays(batch.column(_USER_KEY).flatten()).to_pylist()
                places = [owner + key for owner, key in zip(owners, own, strict=True)]
            value, expires = batch.column(_VALUES[variable.kind]), [_FOREVER] * len(owners)
            if variable.ttl_ms is not None:
                value, times = value.flatten()
                expires = times.to_pylist()
            columns = [*map(values_of, value.flatten()), *([None] * len(owners) for _ in range(added))]
            values = zip(*columns, strict=True) if columns else [()] * len(owners)
            yield from zip(owners, places, map(encode, values), expires, strict=True)

    def _of_lists(self, rows: Iterable[tuple[bytes, bytes, bytes, int]]) -> Iterator[OwnedEntry]:
        ttl_ms = self.variable.ttl_ms or 0
        for owner, elements in groupby(rows, key=itemgetter(0)):
            gathered = _MemoryStore()
            lists = StoredLists(gathered, self.variable.ttl_ms, lambda own=gathered: own.now_ms)  # type: ignore
            for expires_ms, some in groupby(elements, key=itemgetter(3)):
                gathered.now_ms = expires_ms - ttl_ms
                lists.append(owner, [data for _, _, data, _ in some])
            made = ((owner, place, data, now_ms + ttl_ms) for place, (data, now_ms) in gathered.entries.items())
            yield from _plain(made) if self.variable.ttl_ms is None else _expiring(made)


@dataclass(frozen=True, slots=True)
class TimerEntries:
    """Makes the processor's timers from Spark's. See `Convert`."""

    key: StructType
    mode: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[OwnedEntry]:
        keys, domain = KeyCodec(self.key), "event" if self.mode == "eventtime" else "processing"
        for batch in batches:
            owners = keys.encode_arrays(batch.column("key").flatten()).to_pylist()
            for owner, time_ms in zip(owners, batch.column("expiration_timestamp_ms").to_pylist(), strict=True):
                gathered = _MemoryStore()
                ProcessorTimers(gathered, domain).register(owner, time_ms)  # type: ignore[arg-type]
                for place, (data, _) in gathered.entries.items():
                    yield owner, place, data


def heads(variable: Variable) -> dict[bytes, bytes]:
    """The entries about the store itself, which the store of a variable has in each task. Values are not among them."""
    return {} if variable.ttl_ms is None else {META: meta_bytes(None)}


def _check(variable: str, what: str, found: StructType, declared: StructType) -> None:
    """Raise IncompatibleError unless names and types are equal; the processor may have more fields at the end."""
    for number, field in enumerate(found.fields):
        if (why := _unreadable(field.dataType)) is not None:
            raise IncompatibleError(f"state variable `{variable}`: field `{field.name}` cannot be taken over: {why}")
        fields = declared.fields
        same = number < len(fields) and (
            (fields[number].name, fields[number].dataType.simpleString()) == (field.name, field.dataType.simpleString())
        )
        if not same or (len(fields) > len(found.fields) and what != "its values"):
            raise IncompatibleError(
                f"state variable `{variable}`: {what} are {found.simpleString()} in the query's state, and the "
                f"processor declares {declared.simpleString()}: declare what the state has. More fields may follow in "
                "values"
            )


def _unreadable(kind: DataType) -> str | None:
    """The reason why Arrow does not bring values of the type to Python as state takes them; None if it does."""
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            return f"two fields of {kind.simpleString()} have one name"
        return next((why for field in kind.fields if (why := _unreadable(field.dataType)) is not None), None)
    if isinstance(kind, ArrayType):
        return _unreadable(kind.elementType)
    if isinstance(kind, MapType):
        if isinstance(kind.keyType, StructType | ArrayType | MapType):
            return f"a dict cannot have keys of {kind.keyType.simpleString()}"
        return _unreadable(kind.keyType) or _unreadable(kind.valueType)
    try:
        arrow_type(kind)
    except PySparkException:
        return f"there is no Python value for {kind.simpleString()}"
    return f"it is {kind.simpleString()}" if isinstance(kind, UserDefinedType | VariantType) else None


def _struct(columns: StructType, name: str) -> StructType:
    found = columns[name].dataType if name in columns.names else None
    if not isinstance(found, StructType):
        raise IncompatibleError(f"{columns.simpleString()} is no state of a transformWithState")
    return found


def _plain(rows: Iterable[tuple[bytes, bytes, bytes, int]]) -> Iterator[OwnedEntry]:
    return (row[:3] for row in rows)


def _expiring(rows: Iterable[tuple[bytes, bytes, bytes, int]]) -> Iterator[OwnedEntry]:
    """Entries of a store with a time to live: with their headers, and places in the index."""
    for owner, key, data, expires_ms in rows:
        place, written = engine_key(key), header(expires_ms, 0) + data
        yield owner, place, written
        yield owner, index_key(written, place), b""


class _MemoryStore:
    """A store in memory that remembers the time of each write."""

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
