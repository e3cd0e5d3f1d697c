"""Operators that write tables, or look into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.ssp import SystemStream
from penstock.base.application_code import Callback
from penstock.graph.specs.base import OperatorSpec

TableJoinKind: TypeAlias = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToTableSpec(OperatorSpec):
    """Writes each message to a table."""

    operator = "penstock.runtime.operators.send_to_table:SendToTable"
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

    operator = "penstock.runtime.operators.join_table:JoinTable"

    function: Callable[[Any, Any], Any]

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumnsSpec(TableReaderSpec):
    """Adds columns of a table to each message, by its key."""

    operator = "penstock.runtime.operators.columns.table:TableColumns"

    columns: tuple[str, ...]
    message_serde: ColumnSerde
    message_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalJoinSpec(TableReaderSpec):
    """Joins each message with the table's value of its key as of the message's event time."""

    operator = "penstock.runtime.operators.temporal_join:TemporalJoin"
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
