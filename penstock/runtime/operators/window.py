"""window: reduces the messages of a span of time, or a number of messages, to panes. Each shape of windows names its
node, which is in `penstock.runtime.windows`."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.api.time.windows import Window
from penstock.base.plugins import load
from penstock.batch.batch import Due
from penstock.graph.aggregation import window_aggregates
from penstock.graph.serde_failures import SerdePlace
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import KeyInEntry, KeyValue, Node, Operator, StageContext


class ShapeNode(Protocol):
    """The class that runs the windows of a shape, which alone knows the entries of their store."""

    def of(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Any) -> Node:
        """The running operator."""

    def key_in(self, entry: bytes) -> bytes | None:
        """The key of the message that an entry's key belongs to."""

    def first_due(self, window: Window, store: KeyValue) -> Due:
        """When the first of the windows in a store fires."""


class WindowOperator(Operator[WindowSpec]):
    """Windows of the messages' keys, or of the whole task."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        return (self.spec.stores[0],)

    @property
    def undoes_many(self) -> bool:  # type: ignore[override]
        return self._by_column

    @property
    def _by_column(self) -> bool:
        return window_aggregates(self.spec.window, self.spec.message_serde) is not None

    @property
    def _node(self) -> ShapeNode:
        shape = self.spec.window.shape
        node: ShapeNode = load(shape.column_node if self._by_column else shape.node)
        return node

    def next_due(self, store: KeyValue) -> Due:
        return self._node.first_due(self.spec.window, store)

    def key_in(self, store: str) -> KeyInEntry:
        return KeyInEntry(self.spec.key_serde, self._node.key_in)

    def place(self, name: str) -> SerdePlace:
        return SerdePlace(name, "")

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return self._node.of(self.spec, stage, downstream, self.spec.window.shape)
