"""window: reduces the messages of a span of time, or a number of messages, to panes. Each shape of windows has a node
in `penstock.runtime.windows`."""

from __future__ import annotations

from penstock.api.serdes.failures import SerdePlace
from penstock.api.time.windows import Counting, Fixed, Running, Session, Sliding
from penstock.batch.batch import Due
from penstock.graph.aggregation import window_aggregates
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import KeyInEntry, KeyValue, Node, Operator, StageContext
from penstock.runtime.operators.columns.groups import column_task_store
from penstock.runtime.windows import cells, columns, sliding
from penstock.runtime.windows.cells import next_end
from penstock.runtime.windows.columns import ColumnWindowNode, stored_ends
from penstock.runtime.windows.counting import CountingNode
from penstock.runtime.windows.fixed import FixedNode, PlainNode, is_plain
from penstock.runtime.windows.node import next_due
from penstock.runtime.windows.running import RunningNode
from penstock.runtime.windows.sessions import SessionNode
from penstock.runtime.windows.sliding import SlidingNode


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

    def next_due(self, store: KeyValue) -> Due:
        if self._by_column:
            return min(stored_ends(column_task_store(store)), default=None), None
        return next_due(self.spec.window, next_end(store), store)

    def key_in(self, store: str) -> KeyInEntry:
        match self.spec.window.shape:
            case Sliding() | Running():
                find = sliding.key_in
            case _:
                find = columns.key_in if self._by_column else cells.key_in
        return KeyInEntry(self.spec.key_serde, find)

    def place(self, name: str) -> SerdePlace:
        return SerdePlace(name, "")

    def build(self, stage: StageContext, downstream: Target) -> Node:
        match self.spec.window.shape:
            case Fixed() as fixed if self._by_column:
                return ColumnWindowNode(self.spec, stage, downstream, fixed)
            case Fixed() as fixed:
                node = PlainNode if is_plain(self.spec, stage) else FixedNode
                return node(self.spec, stage, downstream, fixed)
            case Session(gap_ms):
                return SessionNode(self.spec, stage, downstream, gap_ms)
            case Counting(messages):
                return CountingNode(self.spec, stage, downstream, messages)
            case Sliding(size_ms):
                return SlidingNode(self.spec, stage, downstream, size_ms)
            case Running(size_ms):
                return RunningNode(self.spec, stage, downstream, size_ms)
