"""Stores by column, as the application's code uses them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.serdes import PackedColumns, Serde
from penstock.api.state.column_store import ColumnStore
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Entries, last_rows
from penstock.arrays.given import ColumnLike, RowsLike, batch_of, column_of
from penstock.errors import SerdeError
from penstock.graph.key_columns import keys_from_bytes, keys_to_bytes
from penstock.graph.serde_failures import store_place
from penstock.runtime.operators.base import KeyValue
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
