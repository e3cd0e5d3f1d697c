"""Operators that work on the columns of many messages, and keep nothing.

map_batches, filter_batches and with_key call a function. join_table(columns=...) adds columns of a table.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.api.serdes import PackedColumns
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.given import ArrowSequence, batch_of, column_of
from penstock.base.application_code import UNSTARTED, unused
from penstock.graph.keys import keys_from_bytes, keys_to_bytes
from penstock.graph.specs import FilterBatchesSpec, MapBatchesSpec, TableColumnsSpec, WithKeySpec
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import MessageColumns, Target, key_bytes_of, locating_row, rows_of
from penstock.runtime.operators.base import Node, Operator, StageContext
from penstock.runtime.operators.elementwise import Chain
from penstock.state.stores.build import SideInputStore
from penstock.state.stores.task_store import TaskStore

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
