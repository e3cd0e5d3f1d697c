"""From the state of PySpark's transformWithState to the backups of a job's first checkpoint, all of it in Spark's
tasks.

Spark's own reader shows the state: it knows every file system and encoding. One Spark job reads all state variables
and makes entries of a processor's stores of them. It brings those of each store and task together, and backs each of
these parts up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import orjson
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType, VariantType

from penstock.checkpoint.task_values import Markers
from penstock.errors import IncompatibleError
from penstock.spark.processor.codec import RowCodec, StoredLists
from penstock.spark.processor.declared import Variable
from penstock.spark.processor.fields import KeyCodec
from penstock.spark.processor.handle import ProcessorTimers
from penstock.spark.processor.rows import values_of
from penstock.spark.processor.task import ProcessorSpec
from penstock.spark.stored_state import ENTRY, SETTINGS, Made, entries_batch, make_parts, worker_scratch
from penstock.spark.versions import arrow_type, map_in_arrow
from penstock.state.outside_backup import FirstBackup
from penstock.state.stores.timed_entries import META, engine_key, header, index_key, meta_bytes
from penstock.system.partitioner import partitions_of

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


_SETTINGS = {**SETTINGS, "spark.sql.session.timeZone": "UTC"}
_IDS = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_MOST, _MOST_BYTES = 4096, 16 << 20


class SparkReader:
    """Reads the state of a stateful operator as of a batch, as DataFrames."""

    def __init__(self, spark: SparkSession, location: str, operator: int, batch: int, *, has_ids: bool) -> None:
        """
        Args:
            has_ids: True if Spark keeps the state with checkpoint ids. Its reader goes by the session's setting.
        """
        self.spark = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001
        for name, value in {**_SETTINGS, _IDS: "2" if has_ids else "1"}.items():
            self.spark.conf.set(name, value)
        self._options = {"path": location, "operatorId": str(operator), "batchId": str(batch)}

    def variable(self, name: str) -> DataFrame:
        """A state variable: a row for each value, entry of a map, or element of a list."""
        return self._frame(stateVarName=name, flattenCollectionTypes="true")

    def timers(self) -> DataFrame:
        return self._frame(readRegisteredTimers="true")

    def _frame(self, **options: str) -> DataFrame:
        return self.spark.read.format("statestore").options(**self._options, **options).load()


@dataclass(frozen=True, slots=True)
class StateRowsSource:
    """The rows of Spark's reader that become the entries of a store."""

    rows: DataFrame
    convert: Convert


def back_up(
    spark: SparkSession,
    sources: Mapping[str, StateRowsSource],
    heads: Mapping[str, Mapping[bytes, bytes]],
    first: FirstBackup,
) -> tuple[dict[int, Markers], dict[str, int]]:
    """Make all backups. Returns the markers by task, and the number of entries by store.

    Args:
        spark: the session in which it is done.
        sources: by store. A store without any is empty.
        heads: what stores have in each task besides.
    """
    parts = first.tasks * len(first.stores)
    done = make_parts(spark, entries_of(sources, first.stores, first.tasks), parts, _BackUp(first, heads))
    markers: dict[int, dict[str, dict[str, str]]] = {task: {} for task in range(first.tasks)}
    counts = dict.fromkeys(first.stores, 0)
    for part, row in done.items():
        task, store = part // len(first.stores), first.stores[part % len(first.stores)]
        counts[store] += row.entries
        for backend, marker in orjson.loads(row.result).items():
            markers[task].setdefault(backend, {})[store] = marker
    return dict(markers), counts


def entries_of(sources: Mapping[str, StateRowsSource], stores: tuple[str, ...], tasks: int) -> list[DataFrame]:
    """The entries of each source, with the columns part, key and value. The part of a store and task is `task *
    len(stores) +` the number of the store."""
    return [
        map_in_arrow(source.rows, _Spread(source.convert, tasks, stores.index(store), len(stores)), ENTRY)
        for store, source in sources.items()
    ]


@dataclass(frozen=True, slots=True)
class _Spread:
    """A function for `map_in_arrow`: entries from the rows of a reader."""

    convert: Convert
    tasks: int
    store: int
    stores: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        owners, keys, values, size = list[bytes](), list[bytes](), list[bytes](), 0
        for owner, key, value in self.convert(batches):
            owners.append(owner)
            keys.append(key)
            values.append(value)
            size += len(key) + len(value)
            if len(keys) == _MOST or size > _MOST_BYTES:
                yield self._batch(owners, keys, values)
                owners, keys, values, size = [], [], [], 0
        if keys:
            yield self._batch(owners, keys, values)

    def _batch(self, owners: list[bytes], keys: list[bytes], values: list[bytes]) -> pa.RecordBatch:
        parts = partitions_of(pa.array(owners, pa.binary()), self.tasks) * self.stores + self.store
        return entries_batch(parts, keys, values)


@dataclass(frozen=True, slots=True)
class _BackUp:
    """Backs up parts, in Spark's workers."""

    first: FirstBackup
    heads: Mapping[str, Mapping[bytes, bytes]]

    def __call__(self, parts: Iterator[tuple[int, Iterator[tuple[bytes, bytes]]]]) -> Iterator[Made]:
        stores = self.first.stores
        with worker_scratch() as scratch:
            for part, rows in parts:
                task, store = part // len(stores), stores[part % len(stores)]
                counted = _CountedEntries(rows)
                entries = chain(self.heads.get(store, {}).items(), counted)
                with tempfile.TemporaryDirectory(prefix="part-", dir=scratch, ignore_cleanup_errors=True) as folder:
                    markers = self.first.run(task, store, entries, Path(folder))
                yield part, counted.count, orjson.dumps(markers).decode()


class _CountedEntries:
    """Counts entries while they are read. Entries of an index, which have no value, do not count."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        self._entries = entries
        self.count = 0

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for entry in self._entries:
            self.count += bool(entry[1])
            yield entry
