"""order="event-time": the messages of an operator wait until the watermark has passed them, and come by event time.

The operator itself knows nothing of it: another one is around it, which holds its messages back.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.batch.batch import Due
from penstock.graph.serde_failures import SerdePlace
from penstock.graph.specs import OperatorSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.messages.groups import column_task_store
from penstock.runtime.operators.base import CallWatch, GatheringNode, KeyInEntry, KeyValue, Node, Operator, StageContext
from penstock.runtime.order import columns, entries
from penstock.runtime.order.columns import OrderedColumnsNode
from penstock.runtime.order.rows import OrderedNode
from penstock.state.stores.task_store import TaskStore


class OrderedOperator(Operator[OperatorSpec]):
    """Holds messages back from an operator, and hands them on by event time."""

    undoes_many = True

    def __init__(self, spec: OperatorSpec, inner: Operator[OperatorSpec]) -> None:
        """`inner` is the operator of `spec.without_order()`."""
        super().__init__(spec)
        if spec.ordering is None:
            raise ValueError(f"operator `{spec.id}` takes its messages as they come")
        self._order = spec.ordering
        self._inner = inner

    @property
    def _by_column(self) -> bool:
        return self.spec.waits_as_columns

    @property
    def time_stores(self) -> tuple[str, ...]:
        return (*self._inner.time_stores, self._order.store)

    def next_due(self, store: KeyValue) -> Due:
        if not isinstance(store, TaskStore) or store.name != self._order.store:
            return self._inner.next_due(store)
        if self._by_column:
            first = columns.first_time(column_task_store(store))
        else:
            first = next((entries.time_in(entry) for entry, _ in store.all()), None)
        return (None if first is None else first + 1), None

    def key_in(self, store: str) -> KeyInEntry | None:
        if store != self._order.store:
            return self._inner.key_in(store)
        return KeyInEntry(self._order.sources[0].key_serde, columns.key_in if self._by_column else entries.key_in)

    def place(self, name: str) -> SerdePlace:
        return self._inner.place(name)

    def build(self, stage: StageContext, downstream: Target) -> Node:
        own = {name: store for name, store in stage.stores.items() if name != self._order.store}
        inner = self._inner.build(replace(stage, stores=own), downstream)
        if isinstance(inner, GatheringNode):
            return OrderedColumnsNode(self.spec.id, self._order, stage, inner)
        return OrderedNode(self.spec.id, self._order, stage, inner)

    def watched(self, watch: CallWatch) -> OperatorSpec:
        return replace(self._inner.watched(watch), ordering=self.spec.ordering, stores=self.spec.stores)
