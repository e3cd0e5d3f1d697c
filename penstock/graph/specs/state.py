"""Operators with state: aggregates, windows and joins of streams, which have stores of their own, and operators that
write tables, or look into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.ssp import SystemStream
from penstock.api.time.aggregates import Aggregate
from penstock.api.time.firing import WindowPane, row_of
from penstock.api.time.windows import Aggregates, Window
from penstock.base.application_code import Callback
from penstock.graph.aggregation import column_aggregates, columns_of, window_aggregates
from penstock.graph.event_time import Join, JoinFunction, JoinSide
from penstock.graph.specs.graph import OperatorSpec, Use


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(OperatorSpec):
    """Keeps aggregates for each key, and emits those of the keys that a batch changed."""

    operator = "penstock.runtime.operators.column_aggregate:AggregateOperator"
    hands_on = False
    needs_task = True

    aggregates: Mapping[str, Aggregate]
    message_serde: Serde[Any]
    """Its aggregates are by column if this is a ColumnSerde."""

    @property
    def works_by_key(self) -> bool:
        return True

    def columns_read(self, passed_on: Use) -> Use:
        by_column = column_aggregates(self.aggregates, self.message_serde)
        return None if by_column is None else columns_of(self.aggregates)

    @property
    def may_get_partial(self) -> bool:
        return self.ordering is None and column_aggregates(self.aggregates, self.message_serde) is not None

    def callbacks(self) -> Iterator[Callback]:
        for name, aggregate in self.aggregates.items():
            yield Callback(f"`of` of `{name}`", aggregate.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(OperatorSpec):
    """Reduces the messages of windows to panes."""

    operator = "penstock.runtime.operators.window:WindowOperator"
    needs_task = True
    sends = True  # messages that are too late

    window: Window
    message_serde: Serde[Any]
    rows: bool = False
    """True: panes are emitted as rows."""

    @property
    def works_by_key(self) -> bool:
        return self.window.keyed

    @property
    def without_keys(self) -> str:
        return "declare the window with keyed=False"

    @property
    def uses_time(self) -> bool:
        return True

    @property
    def takes_order(self) -> bool:  # type: ignore[override]
        return self.window.time == "event" and not self.window.allowed_lateness_ms

    @property
    def may_get_partial(self) -> bool:
        return self.ordering is None and window_aggregates(self.window, self.message_serde) is not None

    @property
    def order_matters(self) -> str:
        return self.window.shape.order_matters

    def columns_read(self, passed_on: Use) -> Use:
        contents, by_column = self.window.contents, window_aggregates(self.window, self.message_serde)
        if by_column is None or self.window.late_to is not None or not isinstance(contents, Aggregates):
            return None
        return columns_of(contents.by_name)

    def callbacks(self) -> Iterator[Callback]:
        return self.window.contents.callbacks()

    def shown(self, pane: WindowPane[Any, Any]) -> Any:
        """The value of the message for a pane."""
        return row_of(pane) if self.rows else pane


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec(OperatorSpec):
    """Joins the messages of two streams that have the same key and are close in time."""

    operator = "penstock.runtime.operators.join:StreamJoin"
    needs_task = True
    takes_order = True
    sends = True  # messages that are late

    join: Join
    function: JoinFunction
    left: JoinSide
    right: JoinSide

    @property
    def works_by_key(self) -> bool:
        return True

    @property
    def sides(self) -> tuple[str, ...]:
        return self.left.source, self.right.source

    @property
    def uses_time(self) -> bool:
        return True

    @property
    def order_matters(self) -> str:
        return "a message joins the newest one that came before it" if self.join.keep == "newest" else ""

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function)


TableJoinKind: TypeAlias = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToTableSpec(OperatorSpec):
    """Writes each message to a table."""

    operator = "penstock.runtime.operators.tables:SendToTable"
    hands_on = False
    needs_task = True

    table: str
    history_ms: int | None
    """The time for which versions are kept; None: the table has no history."""
    table_key: Serde[Any]
    """The serde of the keys in the table's store, without the times of versions."""

    @property
    def works_by_key(self) -> bool:
        return True

    @property
    def writes_table(self) -> str:
        return self.table

    @property
    def uses_time(self) -> bool:
        return self.history_ms is not None

    @property
    def order_matters(self) -> str:
        return "the table keeps the value that came last" if self.history_ms is None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReaderSpec(OperatorSpec):
    """Looks into a table, under the keys of its messages."""

    needs_task = True

    table: str
    kind: TableJoinKind

    @property
    def works_by_key(self) -> bool:
        return True

    @property
    def reads_table(self) -> str:
        return self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoinSpec(TableReaderSpec):
    """Joins each message with the table's value of its key."""

    operator = "penstock.runtime.operators.tables:JoinTable"

    function: Callable[[Any, Any], Any]

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumnsSpec(TableReaderSpec):
    """Adds columns of a table to each message, by its key."""

    operator = "penstock.runtime.operators.column_processor:TableColumns"

    columns: tuple[str, ...]
    message_serde: ColumnSerde
    message_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalJoinSpec(TableReaderSpec):
    """Joins each message with the table's value of its key as of the message's event time."""

    operator = "penstock.runtime.operators.event_time:TemporalJoin"
    sends = True  # messages that are late

    function: Callable[[Any, Any], Any]
    message_serde: Serde[Any]
    late_to: SystemStream | None = None

    @property
    def waits_for_table(self) -> str:
        return self.table

    @property
    def uses_time(self) -> bool:
        return True

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function)
