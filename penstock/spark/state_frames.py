"""The state of a job as DataFrames.

State variables of a processor are columns: the content of their stores, decoded by the schemas in the stores' layouts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, types

from penstock.admin.jobs import FoundJob, choose_versions, open_all_jobs, open_job
from penstock.admin.state.serdes import store_serdes
from penstock.admin.table import refuse_side_stores
from penstock.api.serdes import PackedColumns
from penstock.application.application import Application
from penstock.base.wording import listed
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.graph.stores import StoreLayout
from penstock.spark.processor.codec import RowCodec, StoredLists
from penstock.spark.processor.fields import KeyCodec
from penstock.spark.state_columns import ColumnSource, Function, GivenType, StateColumn, StateColumns, column_of
from penstock.spark.stored_state import ReadChanges, ReadEntries, StoreSource
from penstock.spark.versions import TIME_TYPES, arrow_type, map_in_arrow
from penstock.state.reading.reader import VersionEntry, check_store

_KEY = "key-1("
_KINDS = {"value-1(": "value", "list-1(": "list", "map-1(": "map", "columns-1(": "columns"}
_TTL = "ttl"
_LENGTH = 4


def is_state_variable(layout: StoreLayout) -> bool:
    return layout.key.startswith(_KEY) and layout.value.startswith(tuple(_KINDS))


def variable_columns(
    store: str, layout: StoreLayout, parse: Callable[[str], types.DataType]
) -> tuple[list[types.StructField], types.StructField, StateColumns]:
    """The fields of the keys and of the value, and what makes them: a struct for the grouping key, one for the key of a
    map (`user_key`), and for the value a struct or, of a list, an array of structs.

    Args:
        store: the variable.
        layout: its store's layout, for which `is_state_variable` is true.
        parse: makes a type of its DDL text.

    Raises:
        ConfigError: a type in the layout cannot be read.
    """
    start = next(start for start in _KINDS if layout.value.startswith(start))
    kind, parts = _KINDS[start], layout.value[len(start) : -1].split(";")
    try:
        keys = [_schema(layout.key[len(_KEY) : -1], parse)]
        if kind == "map":
            keys.append(_schema(parts.pop(0), parse))
        expires = kind == "list" and _TTL in parts
        (fields,) = (part for part in parts if part != _TTL)
        schema = _schema(fields, parse)
        value: types.DataType = types.ArrayType(schema) if kind == "list" else schema
        arrow_keys, arrow_value = (
            [arrow_type(key) for key in keys],
            arrow_type(value),
        )
    except Exception as error:
        raise ConfigError(
            f"the layout of store `{store}` has a type that cannot be shown: {layout.key} {layout.value}: {error}. "
            'Read its bytes with key_type="BINARY", value_type="BINARY"'
        ) from error
    names = ["key", "user_key"][: len(keys)]
    stored = tuple(_stored(key) for key in keys)
    rows = _PackedRows(arrow_value) if kind == "columns" else _Rows(_stored(schema))
    columns = StateColumns(
        store,
        tuple(
            (name, StateColumn(name, arrow, _KeyPart(stored[: n + 1])))
            for n, (name, arrow) in enumerate(zip(names, arrow_keys, strict=True))
        ),
        StateColumn("value", arrow_value, _Elements(rows) if isinstance(rows, _Rows) and kind == "list" else rows),
        _WholeLists(expires) if kind == "list" else None,
    )
    return (
        [types.StructField(name, key) for name, key in zip(names, keys, strict=True)],
        types.StructField("value", value),
        columns,
    )


def _schema(text: str, parse: Callable[[str], types.DataType]) -> types.StructType:
    """The schema of the fields in a layout: `name:type`, with commas between them."""
    schema, begin, depth = types.StructType(), 0, 0
    for at, character in enumerate(f"{text},"):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth and at > begin:
            name, _, kind = text[begin:at].partition(":")
            schema = schema.add(unquote(name), parse(unquote(kind)))
            begin = at + 1
    return schema


def _stored(schema: types.StructType) -> str:
    """The schema that decodes bytes to values for Arrow: times as the stored numbers, because as objects of Python they
    would be in the time zone of the process."""
    return json.dumps(_as_numbers(schema).jsonValue())


def _as_numbers(kind: types.DataType) -> types.DataType:
    if isinstance(kind, TIME_TYPES):
        return types.LongType()
    if isinstance(kind, types.VariantType):
        return types.StructType().add("value", types.BinaryType()).add("metadata", types.BinaryType())
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_as_numbers(kind.elementType), kind.containsNull)
    if isinstance(kind, types.MapType):
        return types.MapType(_as_numbers(kind.keyType), _as_numbers(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, types.StructType):
        return types.StructType([types.StructField(f.name, _as_numbers(f.dataType), f.nullable) for f in kind.fields])
    return kind


@cache
def _row_codec(schema: str) -> RowCodec:
    return RowCodec(types.StructType.fromJson(json.loads(schema)))


@cache
def _key_codec(schema: str) -> KeyCodec:
    return KeyCodec(types.StructType.fromJson(json.loads(schema)))


@dataclass(frozen=True, slots=True)
class _KeyPart:
    """The last of several keys that follow each other."""

    schemas: tuple[str, ...]

    def __call__(self, data: bytes) -> Any:
        at, found = 0, None
        for schema in self.schemas:
            found, at = _key_codec(schema).decode_from(data, at)
        return found


@dataclass(frozen=True, slots=True)
class _Rows:
    schema: str

    def __call__(self, data: bytes) -> Any:
        return _row_codec(self.schema).decode(data)


@dataclass(frozen=True, slots=True)
class _PackedRows:
    kind: pa.DataType

    def __call__(self, data: bytes) -> Any:
        return _packed(self.kind).from_bytes(data)


@cache
def _packed(kind: pa.DataType) -> PackedColumns:
    return PackedColumns(pa.schema(list(kind)))


@dataclass(frozen=True, slots=True)
class _Elements:
    """The elements of a list as `_WholeLists` has them."""

    row: _Rows

    def __call__(self, data: bytes) -> list[Any]:
        decode = _row_codec(self.row.schema).decode
        found, at = [], 0
        while at < len(data):
            end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
            found.append(decode(data[at + _LENGTH : end]))
            at = end
        return found


@dataclass(frozen=True, slots=True)
class _WholeLists:
    """One entry for each list, of those for its head and its pieces. The head comes first, because no key begins
    another one."""

    expires: bool

    def __call__(self, entries: Iterable[VersionEntry], now_ms: int) -> Iterator[VersionEntry]:
        head: VersionEntry | None = None
        pieces = _Pieces()
        for entry in entries:
            if head is None or not entry.key.startswith(head.key):
                if head is not None:
                    yield from self._whole(head, pieces, now_ms)
                head, pieces = entry, _Pieces()
            pieces[entry.key] = entry.value
        if head is not None:
            yield from self._whole(head, pieces, now_ms)

    def _whole(self, head: VersionEntry, pieces: _Pieces, now_ms: int) -> Iterator[VersionEntry]:
        lists = StoredLists(pieces, 1 if self.expires else None, lambda: now_ms)  # type: ignore[arg-type]
        data = b"".join(len(each).to_bytes(_LENGTH, "big") + each for each in lists.get(head.key))
        if data:
            yield VersionEntry(head.key, head.task, data)


class _Pieces(dict[bytes, bytes]):
    """The entries of a list, as a read-only store."""

    def put(self, key: bytes, value: bytes | None) -> None:
        raise NotImplementedError


_SHOWN = 10
_TASK = types.StructField("task", types.IntegerType(), nullable=False)


def read_state(
    spark: SparkSession,
    root: str,
    store: str,
    checkpoint: str | int = "latest",
    *,
    job: str | None = None,
    app: Application | None = None,
    key_type: GivenType | None = None,
    value_type: GivenType | None = None,
    key_function: Function | None = None,
    value_function: Function | None = None,
    backend: str | None = None,
    config: Mapping[str, object] | None = None,
) -> DataFrame:
    """A store of a job as of a retained checkpoint: one row for each entry, with the columns task, key and value.

    The checkpoint is chosen now; the DataFrame is lazy and shows that checkpoint whenever it is used. Each task of the
    job is a partition: an executor restores it from the job's backups to its scratch folder, and reads it there. A
    running job is not disturbed. If it stops retaining the checkpoint meanwhile, the DataFrame raises an error that
    says so.

    Keys and values of Penstock's serdes have the types that follow from them: `String` STRING, `Integer` INT, `Long`
    BIGINT, `Double` DOUBLE, `Bytes` BINARY, `Json` STRING (the JSON's text), `Tuple` a struct with the fields `_1` and
    so on. Keys and values with another serde are BINARY, unless `app` and a type are given. The state variables of a
    `StatefulProcessor` have the types that the processor declared: key is a struct of the grouping key, and value is a
    struct, for a list an array of structs, or for a map one entry, with the column `user_key` before it.

    Args:
        spark: the session.
        root: `job.root` of the job.
        store: the name of the store.
        checkpoint: the id of a checkpoint, the number of its batch, `latest`, or `latest-N`, the N-th before it. A job
            inside a query counts from 1: its batch is the one with the query's number + 1.
        job: the job, as `name` or `name-id`. It may be left out if the root has only one.
        app: the application of the job. It is needed for serdes that are not Penstock's.
        key_type, value_type: the Spark type of a column: a `DataType`, or a text such as "name STRING, visits LONG". An
            object of JSON, and a tuple, fits a struct. BINARY is always the stored bytes.
        key_function, value_function: a function of each decoded key or value (or of its bytes, if its serde is not
            known) that returns the column's value. The type of the column is then required.
        backend: the backend to restore from; the first one that can, if None.
        config: further keys of the job's configuration, such as systems that hold changelogs, and settings of backends.

    Returns:
        the DataFrame. Its rows are in the order of the keys' bytes within each partition.

    Raises:
        NotFoundError: there is no such job or store, or the checkpoint is not retained. The message lists those that
            exist.
        ConfigError: the root has several jobs and none is named, or a type does not fit the serdes.

    Example::

        visits = pss.read_state(spark, root, "visits", value_type="count LONG, last STRING")
        visits.groupBy().sum("value.count").show()
    """
    given = _GivenTypes(app, key_type, value_type, key_function, value_function)
    with _job(root, job, config) as found:
        (record,) = _records(found, store, [str(checkpoint)])
        source = StoreSource(found.config, found.paths, store, backend)
        keys, value, columns = given.columns(record, store)
    schema = types.StructType([_TASK, *keys, value])
    return _by_task(spark, record, ReadEntries(source, record, columns), schema)


def read_changes(
    spark: SparkSession,
    root: str,
    store: str,
    from_checkpoint: str | int,
    to_checkpoint: str | int = "latest",
    *,
    job: str | None = None,
    app: Application | None = None,
    key_type: GivenType | None = None,
    value_type: GivenType | None = None,
    key_function: Function | None = None,
    value_function: Function | None = None,
    backend: str | None = None,
    config: Mapping[str, object] | None = None,
) -> DataFrame:
    """The differences in a store between two retained checkpoints: one row for each entry that was added, changed or
    removed, with the columns change, task, key, before and after.

    `change` is `added`, `changed` or `removed`. `before` is null for an added entry, `after` for a removed one. The
    values that entries had between the two checkpoints are not shown. Everything else is as in `read_state`. A task
    whose state did not change is not restored.

    Args:
        spark: the session.
        root: `job.root` of the job.
        store: the name of the store.
        from_checkpoint, to_checkpoint: the checkpoints, as in `read_state`.
        job, app, key_type, value_type, key_function, value_function, backend, config: as in `read_state`.

    Raises:
        NotFoundError, ConfigError: as `read_state`.
        IncompatibleError: the store has other serdes, or the job another number of tasks, at one checkpoint than at the
            other.

    Example::

        changes = pss.read_changes(spark, root, "visits", "latest-1", "latest")
        changes.where("change = 'removed'").select("key", "before").show()
    """
    given = _GivenTypes(app, key_type, value_type, key_function, value_function)
    with _job(root, job, config) as found:
        before, after = _records(found, store, [str(from_checkpoint), str(to_checkpoint)])
        _check_comparable(before, after, store)
        source = StoreSource(found.config, found.paths, store, backend)
        keys, value, columns = given.columns(after, store)
    values = [types.StructField(name, value.dataType) for name in ("before", "after")]
    schema = types.StructType([types.StructField("change", types.StringType(), nullable=False), _TASK, *keys, *values])
    return _by_task(spark, after, ReadChanges(source, before, after, columns), schema)


class _GivenTypes:
    """The caller's types and functions for keys and values."""

    def __init__(
        self,
        app: Application | None,
        key_type: GivenType | None,
        value_type: GivenType | None,
        key_function: Function | None,
        value_function: Function | None,
    ) -> None:
        self._app = app
        self._key = (key_type, key_function)
        self._value = (value_type, value_function)

    def columns(
        self, record: CheckpointRecord, store: str
    ) -> tuple[list[types.StructField], types.StructField, StateColumns]:
        layout = StoreLayout.parse(record.stores[store])
        if is_state_variable(layout) and not any((*self._key, *self._value)):
            return variable_columns(store, layout, types.DataType.fromDDL)
        serdes = store_serdes(record, store, self._app)
        key, keys = column_of(ColumnSource("key", store, serdes.key_name, serdes.key, *self._key))
        value, values = column_of(ColumnSource("value", store, serdes.value_name, serdes.value, *self._value))
        columns = StateColumns(store, (("key", keys),), values)
        return [types.StructField("key", key)], types.StructField("value", value), columns


@contextmanager
def _job(root: str, name: str | None, config: Mapping[str, object] | None) -> Iterator[FoundJob]:
    overrides = {**(config or {}), "job.root": str(root)}
    if name is None:
        name = _only_job(root, overrides)
    with open_job(name, overrides=overrides) as found:
        yield found


def _only_job(root: str, overrides: Mapping[str, object]) -> str:
    with open_all_jobs(overrides=overrides) as jobs:
        names = [found.paths.root for found in jobs]
    if not names:
        raise NotFoundError(f"there is no job in `{root}`: give the `job.root` of the job")
    if len(names) > 1:
        shown = listed([f"`{name}`" for name in names[:_SHOWN]])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ConfigError(f"`{root}` has {len(names)} jobs: {shown}{more}. Name one, as in job={names[0]!r}")
    return names[0]


def _records(found: FoundJob, store: str, versions: Sequence[str]) -> list[CheckpointRecord]:
    records = choose_versions(found, versions)
    for record in records:
        refuse_side_stores(found, record, [store])
        check_store(record, store)
    return records


def _check_comparable(before: CheckpointRecord, after: CheckpointRecord, store: str) -> None:
    if before.task_count != after.task_count:
        raise IncompatibleError(
            f"checkpoint {before.id} has {before.task_count} tasks and {after.id} has {after.task_count}: the job was "
            "started with other tasks in between. Read both with `read_state`, and join them by key"
        )
    old, new = (StoreLayout.parse(record.stores[store]) for record in (before, after))
    if (old.key, old.value) != (new.key, new.value):
        raise IncompatibleError(
            f"store `{store}` has the serdes `{old.key}` and `{old.value}` at checkpoint {before.id}, and `{new.key}` "
            f"and `{new.value}` at {after.id}. Read both with `read_state`, and join them by key"
        )


def _by_task(
    spark: SparkSession,
    record: CheckpointRecord,
    function: Callable[[Any], Iterator[pa.RecordBatch]],
    schema: types.StructType,
) -> DataFrame:
    tasks = record.task_count
    return map_in_arrow(spark.range(0, tasks, 1, tasks), function, schema)
