"""Operators that give the application's code columns. process_batch gathers all messages of a batch and calls its
processor once for them; the processor's stores are by column, as the application's code uses them. map_batches,
filter_batches and with_key call a function and keep nothing. join_table(columns=...) adds columns of a table.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.api.serdes import PackedColumns, Serde
from penstock.api.store import ColumnStore
from penstock.api.task import BatchProcessor, MessageBatch
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Entries, last_rows
from penstock.arrays.given import ArrowSequence, ColumnLike, RowsLike, batch_of, column_of
from penstock.base.application_code import UNSTARTED, unused
from penstock.batch.batch import Batch
from penstock.errors import ConfigError, SerdeError
from penstock.graph.keys import keys_from_bytes, keys_to_bytes
from penstock.graph.serdes import store_place
from penstock.graph.specs import ColumnTaskSpec, FilterBatchesSpec, MapBatchesSpec, TableColumnsSpec, WithKeySpec
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import NOWHERE, MessageColumns, Target, key_bytes_of, locating_row, rows_of
from penstock.runtime.messages.entry import StageEntry
from penstock.runtime.operators.base import Firing, GatheringNode, KeyValue, Node, Operator, StageContext
from penstock.runtime.operators.elementwise import Chain
from penstock.state.stores.build import SideInputStore
from penstock.state.stores.columns import ColumnTaskStore
from penstock.state.stores.task_store import TaskStore


def column_store(store: KeyValue) -> ColumnStore[Any] | None:
    """The store by column; None if its values are no rows of a schema."""
    if not isinstance(store, TaskStore) or not isinstance(store.spec.value_serde, PackedColumns):
        return None
    fast = store.find(ColumnTaskStore)
    return (
        _OneKeyStore(store, store.spec.value_serde)
        if fast is None
        else _ManyKeysStore(store, fast, store.spec.value_serde)
    )


class _Store(ColumnStore[Any]):
    """Calls for one key go to the store itself."""

    def __init__(self, store: TaskStore, serde: PackedColumns) -> None:
        self._store = store
        self._serde = serde
        self._place = store_place(store.spec.name)

    def __repr__(self) -> str:
        return repr(self._store)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._store.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self._store.put(key, value)

    def delete(self, key: Any) -> None:
        self._store.delete(key)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        return self._store.range(from_key, to_key)

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._store.all()

    def items(self, *, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        return self._store.items(prefix=prefix)

    def snapshot(self, from_key: Any, to_key: Any) -> list[tuple[Any, Any]]:
        return self._store.snapshot(from_key, to_key)

    @property
    def _key_serde(self) -> Serde[Any]:
        return self._store.spec.key_serde

    def _key_bytes(self, given: ColumnLike) -> pa.Array:
        keys = column_of(given)
        if keys.null_count:
            raise SerdeError(f"{self._place.name}: a key is null")
        try:
            return keys_to_bytes(self._key_serde, keys)
        except Exception as error:
            first = next(each for each in keys.to_pylist() if not self._fits(each))
            raise self._place.unwritable("key", self._key_serde, first, error) from error

    def _fits(self, key: Any) -> bool:
        try:
            self._key_serde.to_bytes(key)
        except Exception:
            return False
        return True

    def _rows(self, key_count: int, given: RowsLike) -> pa.StructArray:
        rows = batch_of(given)
        if key_count != rows.num_rows:
            raise SerdeError(f"{self._place.name}: put_many() got {key_count} keys and {rows.num_rows} rows")
        try:
            return self._serde.fitted(rows)
        except ValueError as error:
            raise SerdeError(f"{self._place.name}: {error}") from error

    def _batch(self, rows: pa.StructArray) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self._serde.schema)


class _ManyKeysStore(_Store):
    """A store that knows many keys at once."""

    def __init__(self, store: TaskStore, fast: ColumnTaskStore, serde: PackedColumns) -> None:
        super().__init__(store, serde)
        self._fast = fast

    def get_many(self, keys: ColumnLike) -> pa.RecordBatch:
        values, present = self._fast.get_many(ByteArray.of(self._key_bytes(keys)))
        return self._batch(self._serde.packed.unpack(values, present))

    def put_many(self, keys: ColumnLike, rows: RowsLike) -> None:
        key_bytes = ByteArray.of(self._key_bytes(keys))
        values = self._serde.packed.pack(self._rows(len(key_bytes), rows))
        last = last_rows(key_bytes)
        if len(last) < len(key_bytes):
            key_bytes, values = key_bytes.take(last), values.take(last)
        self._fast.put_many(Entries(key_bytes, values, np.ones(len(key_bytes), np.bool_)))

    def delete_many(self, keys: ColumnLike) -> None:
        key_bytes = ByteArray.of(self._key_bytes(keys))
        key_bytes = key_bytes.take(last_rows(key_bytes))
        gone = np.zeros(len(key_bytes), np.bool_)
        self._fast.put_many(Entries(key_bytes, ByteArray.empty(len(key_bytes)), gone))

    def scan(self, rows: int = 65_536) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        for block in self._fast.blocks(rows):
            keys = keys_from_bytes(self._key_serde, block.key_bytes.to_arrow())
            yield keys, self._batch(self._serde.packed.unpack(block.value_bytes))


class _OneKeyStore(_Store):
    """A store that is asked for one key at a time: its entries have a time to live, or others fill it."""

    def get_many(self, keys: ColumnLike) -> pa.RecordBatch:
        data = self._key_bytes(keys).to_pylist()
        values = [self._store.get(self._key_serde.from_bytes(each)) for each in data]
        return self._batch(pa.array(values, self._serde.type))

    def put_many(self, keys: ColumnLike, rows: RowsLike) -> None:
        data = self._key_bytes(keys).to_pylist()
        for key, value in zip(data, self._rows(len(data), rows).to_pylist(), strict=True):
            self._store.put(self._key_serde.from_bytes(key), value)

    def delete_many(self, keys: ColumnLike) -> None:
        for key in self._key_bytes(keys).to_pylist():
            self._store.delete(self._key_serde.from_bytes(key))

    def scan(self, rows: int = 65_536) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        entries = self._store.all()
        while part := list(islice(entries, rows)):
            data = pa.array([self._key_serde.to_bytes(key) for key, _ in part], pa.binary())
            yield keys_from_bytes(self._key_serde, data), self._batch(pa.array([v for _, v in part], self._serde.type))


class ColumnTask(Operator[ColumnTaskSpec]):
    """Runs a BatchProcessor."""

    undoes_many = True

    def build(self, stage: StageContext, downstream: Target) -> Node:
        try:
            processor = self.spec.processor()
            if (result := processor.init(_Context(stage))) is not None:  # type: ignore[func-returns-value]
                raise unused("`init`", result)
        except BaseException as error:
            raise failure_in(self.spec.id, error) from error
        return _ColumnTaskNode(self, processor, stage, downstream)


class _Context:
    def __init__(self, stage: StageContext) -> None:
        self._stage = stage

    @property
    def task(self) -> int:
        return self._stage.task

    @property
    def config(self) -> Mapping[str, str]:
        return self._stage.config

    @property
    def metrics(self) -> MetricsRegistry:
        return self._stage.user_metrics

    def store(self, name: str) -> ColumnStore[Any]:
        found = column_store(self.row_store(name))
        if found is None:
            raise KeyError(
                f"the values of store `{name}` are no rows of a schema: declare app.store({name!r}, "
                "value=ps.Columns(...)), or use context.row_store(...)"
            )
        return found

    def row_store(self, name: str) -> KeyValue:
        if name not in self._stage.stores:
            known = ", ".join(f"`{each}`" for each in self._stage.stores) or "none"
            raise KeyError(
                f"the operator has no store `{name}`; it has {known}: name it in process_batch(stores=[...])"
            )
        return self._stage.stores[name]


class _ColumnTaskNode(GatheringNode):
    """Gathers the messages of a batch."""

    def __init__(
        self, operator: ColumnTask, processor: BatchProcessor, stage: StageContext, downstream: Target
    ) -> None:
        super().__init__(self._add, stage.position)
        self._spec = operator.spec
        self._position = stage.position
        self._processor = processor
        self._downstream = downstream
        self._place = operator.place(self._spec.id)
        self._waiting: list[tuple[pa.Array, pa.StructArray, Any]] = []
        self._earliest_ms = 0

    def begin(self, batch: Batch) -> None:
        self._waiting = []
        self._earliest_ms = batch.earliest_output(self._spec.id)

    def mark(self) -> int:
        return len(self._waiting)

    def undo(self, mark: int) -> None:
        del self._waiting[mark:]

    def _add(self, columns: MessageColumns) -> None:
        self.take(*self.columns_of(columns))

    def columns_of(self, columns: MessageColumns) -> tuple[pa.Array, pa.StructArray, Any]:
        spec, position = self._spec, self._position
        keys = key_bytes_of(columns, spec.message_key, position, spec.id, self._place)
        return keys, rows_of(columns, spec.message_serde, position, spec.id), position.page.times_of(columns.rows)

    def take(self, keys: pa.Array, rows: pa.StructArray, times: Any) -> None:
        self._waiting.append((keys_from_bytes(self._spec.message_key, keys), rows, times))

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        if self._waiting:
            timestamp_ms = max(batch.time_ms, self._earliest_ms)
            run = partial(self._run, batch)
            yield Firing(None, timestamp_ms, "batch", run, "the batch", must_succeed=True)

    def _run(self, batch: Batch) -> None:
        waiting, self._waiting = self._waiting, []
        keys = pa.concat_arrays([keys for keys, _, _ in waiting])
        rows = pa.concat_arrays([rows for _, rows, _ in waiting])
        times = pa.array(np.concatenate([times for _, _, times in waiting]))
        messages = MessageBatch(pa.RecordBatch.from_struct_array(rows), keys, times, batch.time_ms)
        result: object = self._processor.process(messages, self)
        if result is not None:
            raise unused("`process`", result)

    def emit(self, keys: ColumnLike, values: RowsLike) -> None:
        """See `BatchCollector.emit`."""
        spec, position = self._spec, self._position
        if self._downstream is NOWHERE:
            raise ConfigError(
                f"operator `{spec.id}` emits messages, and no operator follows it: nothing would take them. Let "
                "one follow process_batch(...), such as .send_to(app.output(...))"
            )
        keys, values = column_of(keys), batch_of(values)
        if len(keys) != values.num_rows:
            raise ValueError(f"emit() got {len(keys)} keys and {values.num_rows} rows")
        rows = spec.result_serde.fitted(values)
        key_bytes = ArrowSequence(keys_to_bytes(spec.key_serde, keys))
        entry = StageEntry(spec.id, self._place, spec.key_serde, spec.value_serde, position, NOWHERE)
        row = np.full(len(keys), position.row, np.int64)
        self._downstream.accept(MessageColumns(entry, None, ArrowSequence(rows), row, key_bytes, None))  # type: ignore[arg-type]

    def close(self) -> None:
        self._processor.close()


F = TypeVar("F", MapBatchesSpec, FilterBatchesSpec)


class OfBatches(Operator[F]):
    """Calls the application's function for the columns of some messages."""

    undoes_many = True

    @abstractmethod
    def result(self, batch: pa.RecordBatch) -> Any:
        """The checked result of the function. Raises TypeError, ValueError."""

    @abstractmethod
    def apply(self, columns: MessageColumns, result: Any) -> MessageColumns: ...

    def build(self, stage: StageContext, downstream: Target) -> Node:
        position, serde = stage.position, self.spec.message_serde

        def step(columns: MessageColumns) -> MessageColumns:
            rows = rows_of(columns, serde, position, self.spec.id)
            if not isinstance(columns.values, ArrowSequence):
                columns = columns.with_values(ArrowSequence(rows))
            with locating_row(self.spec.id, columns, position, self.result):
                return self.apply(columns, self.result(pa.RecordBatch.from_struct_array(rows)))

        return Chain(stage.clock.timed(self.spec.id, step), downstream, position)


class WithKey(Operator[WithKeySpec]):
    """Adds the key as a column."""

    undoes_many = True

    def build(self, stage: StageContext, downstream: Target) -> Node:
        spec, position = self.spec, stage.position
        place = self.place(spec.id)

        def step(columns: MessageColumns) -> MessageColumns:
            rows = rows_of(columns, spec.message_serde, position, spec.id)
            key_bytes = key_bytes_of(columns, spec.message_key, position, spec.id, place)
            keys = keys_from_bytes(spec.message_key, key_bytes)
            parts = keys.flatten() if pa.types.is_struct(keys.type) else [keys]
            own = [pa.field(name, part.type) for name, part in zip(spec.columns, parts, strict=True)]
            fields = [*own, *spec.message_serde.schema]
            keyed = pa.StructArray.from_arrays([*parts, *rows.flatten()], fields=fields)
            return columns.with_values(ArrowSequence(keyed))

        return Chain(stage.clock.timed(self.spec.id, step), downstream, position)


class MapBatches(OfBatches[MapBatchesSpec]):
    def result(self, batch: pa.RecordBatch) -> pa.StructArray:
        given, serde = self.spec.function(batch), self.spec.result_serde
        try:
            found = batch_of(given)
        except TypeError:
            raise _not_expected("map_batches", "a pyarrow.RecordBatch or a DataFrame", given) from None
        if found.num_rows != batch.num_rows:
            raise ValueError(f"the function got {batch.num_rows} rows and returned {found.num_rows}")
        return serde.fitted(found)

    def apply(self, columns: MessageColumns, result: pa.StructArray) -> MessageColumns:
        return columns.with_values(ArrowSequence(result))


class FilterBatches(OfBatches[FilterBatchesSpec]):
    def result(self, batch: pa.RecordBatch) -> Any:
        given = self.spec.function(batch)
        try:
            column = column_of(given)
        except (TypeError, pa.ArrowException):
            column = None
        if column is None or not pa.types.is_boolean(column.type):
            raise _not_expected("filter_batches", "a column of truth values", given)
        found = column.fill_null(False).to_numpy(zero_copy_only=False)
        if len(found) != batch.num_rows:
            raise ValueError(f"the function got {batch.num_rows} rows and returned {len(found)} truth values")
        return found

    def apply(self, columns: MessageColumns, result: Any) -> MessageColumns:
        return columns.where(result)


def _not_expected(operator: str, expected: str, found: object) -> Exception:
    if type(found) in UNSTARTED:
        return unused(f"the function of {operator}", found)
    return TypeError(f"the function of {operator} returns {expected}, not {type(found).__name__}")


class TableColumns(Operator[TableColumnsSpec]):
    """Looks up the keys of many messages in a table that does not change meanwhile."""

    undoes_many = True

    def build(self, stage: StageContext, downstream: Target) -> Node:
        spec, position = self.spec, stage.position
        store = stage.stores[spec.table]
        found = store.find(SideInputStore) if isinstance(store, TaskStore) else None
        serde = None if found is None else found.spec.value_serde
        if found is None or not isinstance(serde, PackedColumns):
            raise TypeError(f"table `{spec.table}` cannot be read by column")
        table, packed, table_key = found, serde.packed, found.spec.key_serde
        place = self.place(spec.id)

        def accept(columns: MessageColumns) -> None:
            rows = rows_of(columns, spec.message_serde, position, spec.id)
            array = key_bytes_of(columns, spec.message_key, position, spec.id, place)
            try:
                if type(table_key) is not type(spec.message_key):
                    array = keys_to_bytes(table_key, keys_from_bytes(spec.message_key, array))
                values, present = table.get_many(ByteArray.of(array))
                if array.null_count:
                    present = present & ~array.is_null().to_numpy(zero_copy_only=False)
                other = packed.unpack(values, present)
            except Exception as error:
                raise failure_in(spec.id, error) from error
            added = dict(zip(packed.type.names, other.flatten(), strict=True))
            made = [*rows.flatten(), *(added[name] for name in spec.columns)]
            joined = columns.with_values(ArrowSequence(pa.StructArray.from_arrays(made, fields=self._fields())))
            if spec.kind == "inner" and not present.all():
                joined = joined.where(np.asarray(present))  # type: ignore[arg-type]
            if len(joined.rows):
                downstream.accept(joined)

        return Node(accept, position)

    def _fields(self) -> list[pa.Field]:
        return list(self.spec.value_serde.type)  # type: ignore[attr-defined]
