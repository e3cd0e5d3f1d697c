"""join_table(columns=...): adds columns of a table to many messages at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.api.serdes import PackedColumns
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.sequences import ArrowSequence
from penstock.graph.key_columns import keys_from_bytes, keys_to_bytes
from penstock.graph.specs import TableColumnsSpec
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import MessageColumns, Target, key_bytes_of, rows_of
from penstock.runtime.operators.base import Node, Operator, StageContext
from penstock.state.stores.side_input import SideInputStore
from penstock.state.stores.task_store import TaskStore


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
