"""process_batch: gathers all messages of a batch, and calls its processor once for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.batch_processor import BatchProcessor, MessageBatch
from penstock.api.state.column_store import ColumnStore
from penstock.arrays.given import ColumnLike, RowsLike, batch_of, column_of
from penstock.arrays.sequences import ArrowSequence
from penstock.base.application_code import unused
from penstock.batch.batch import Batch
from penstock.errors import ConfigError
from penstock.graph.key_columns import keys_from_bytes, keys_to_bytes
from penstock.graph.specs import ColumnTaskSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import NOWHERE, MessageColumns, StageEntry, Target, key_bytes_of, rows_of
from penstock.runtime.operators.base import Firing, GatheringNode, KeyValue, Node, Operator, StageContext
from penstock.runtime.operators.columns.stores import column_store


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
