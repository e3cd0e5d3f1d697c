"""Functions of messages or of their columns, without state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from penstock.api.expressions import Expression, Selection
from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.ssp import SystemStream
from penstock.base.application_code import Callback
from penstock.graph.specs.base import OperatorSpec, Use


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec(OperatorSpec):
    """A function of each message, without state."""

    function: Callable[[Any], Any]
    envelope: bool = False
    """The function gets the whole message, not the value alone."""

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function, needed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSpec(FunctionSpec):
    """value -> value."""

    operator = "penstock.runtime.operators.elementwise:Map"

    def columns_read(self, passed_on: Use) -> Use:
        return self.function.columns if isinstance(self.function, Selection) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapSpec(FunctionSpec):
    """value -> any number of values."""

    operator = "penstock.runtime.operators.elementwise:FlatMap"

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function, may_yield=True, needed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec(FunctionSpec):
    """Keeps a message if the function of its value is true."""

    operator = "penstock.runtime.operators.elementwise:Filter"

    def columns_read(self, passed_on: Use) -> Use:
        return _besides(self.function, passed_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsyncSpec(OperatorSpec):
    """value -> value, by calls that wait, many at the same time."""

    operator = "penstock.runtime.operators.map_async:MapAsync"
    function: Callable[..., Any]
    parallel: int
    timeout_ms: int
    retries: int
    retry_on: tuple[type[Exception], ...]
    client: Callable[[], AbstractAsyncContextManager[Any]] | None
    key: Callable[[Any], Any] | None
    remember_ms: int

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function, waits=True, needed=True)
        yield Callback("`client`", self.client, needed=self.client is not None)
        yield Callback("`key`", self.key, needed=self.key is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatchesSpec(FunctionSpec):
    """Columns -> columns of as many rows. The function gets and returns a RecordBatch."""

    operator = "penstock.runtime.operators.columns.batches:MapBatches"
    message_serde: ColumnSerde
    result_serde: ColumnSerde


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBatchesSpec(FunctionSpec):
    """Keeps the rows for which the function of their RecordBatch gives true."""

    operator = "penstock.runtime.operators.columns.batches:FilterBatches"
    message_serde: ColumnSerde


@dataclass(frozen=True, slots=True, kw_only=True)
class WithKeySpec(OperatorSpec):
    """Columns -> the same columns, with the key as one more, or with its fields."""

    operator = "penstock.runtime.operators.columns.batches:WithKey"
    columns: tuple[str, ...]
    message_serde: ColumnSerde
    message_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBySpec(FunctionSpec):
    """Sends each message to the task that owns its new key."""

    operator = "penstock.runtime.operators.elementwise:PartitionBy"
    changes_key = True
    spreads_keys = True
    gives_keys = True

    def columns_read(self, passed_on: Use) -> Use:
        return _besides(self.function, passed_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionThroughSpec(PartitionBySpec):
    """Sends each message to the task that owns its new key, through a durable intermediate stream."""

    operator = "penstock.runtime.operators.elementwise:PartitionThrough"
    changes_key = False

    through: SystemStream

    @property
    def sent_to(self) -> SystemStream:
        return self.through


def _besides(function: object, passed_on: Use) -> Use:
    """The columns that an expression reads of rows that are passed on."""
    return function.columns | passed_on if isinstance(function, Expression) and passed_on is not None else None
