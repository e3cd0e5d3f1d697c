"""Operators that run the application's code: functions of messages or of their columns, without state; and tasks,
with stores. The interface of a task that gets all messages of a batch at once is here as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from penstock.api.expressions import Expression, Selection
from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.ssp import SystemStream
from penstock.api.store import KeyValueStore
from penstock.api.task import BatchProcessor, StreamTask
from penstock.api.time.firing import timers_store
from penstock.base.application_code import Callback, maker
from penstock.graph.specs.graph import OperatorSpec, Use
from penstock.metrics.registry import Counter, MetricsRegistry


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

    operator = "penstock.runtime.operators.column_processor:MapBatches"
    message_serde: ColumnSerde
    result_serde: ColumnSerde


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBatchesSpec(FunctionSpec):
    """Keeps the rows for which the function of their RecordBatch gives true."""

    operator = "penstock.runtime.operators.column_processor:FilterBatches"
    message_serde: ColumnSerde


@dataclass(frozen=True, slots=True, kw_only=True)
class WithKeySpec(OperatorSpec):
    """Columns -> the same columns, with the key as one more, or with its fields."""

    operator = "penstock.runtime.operators.column_processor:WithKey"
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


Emit: TypeAlias = Callable[[Any, Any], None]

KeyedValue: TypeAlias = tuple[bytes | None, Any]
"""A message: its key's bytes and its value."""


class BatchTaskContext(Protocol):
    """The services of a BatchTask, valid for its whole life."""

    @property
    def task(self) -> int:
        """The number of the task that it runs in."""

    @property
    def config(self) -> Mapping[str, str]:
        """The configuration as tasks see it."""

    @property
    def metrics(self) -> MetricsRegistry: ...

    @property
    def late(self) -> Counter:
        """Counts late messages that were dropped."""

    def store(self, name: str) -> KeyValueStore[Any, Any]:
        """One of the operator's stores. Raises KeyError if the operator does not have it."""

    def watched(self, elements: Iterable[Any]) -> Iterator[Any]:
        """An iterator over these elements. Each one that is taken from it is progress: the runtime gives up an attempt
        that makes none for `container.attempt.timeout.ms`."""


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch as a BatchTask gets it."""

    number: int
    """Counts the batches of the job, from 1."""
    time_ms: int
    """The batch time, in epoch milliseconds."""
    late_watermark: int | None
    """Messages with an event time below it are late, in epoch milliseconds; None: there is no watermark yet."""
    firing_watermark: int | None
    """Timers and windows up to this event time fire in this batch, in epoch milliseconds; None: there is none yet."""
    control: Literal["none", "end-of-stream", "drain"] = "none"
    """The batch ends the input, or drains the job."""


class KeyFailed(Exception):  # noqa: N818 - it carries the application's error, which is its cause
    """The application's code raised for a key: `raise KeyFailed(key, "handleInputRows") from error`.

    Args:
        key: the key as messages show it.
        what: the called code, in words.
    """

    def __init__(self, key: object, what: str) -> None:
        super().__init__(f"{what}, key {key!r}")
        self.key = key
        self.what = what


class BatchTask(ABC):
    """Processes a batch as a whole: all messages of the task have come before it sees the first one.

    An instance lives as long as its task stays in a container, and sees its batches in order. A batch whose attempt is
    discarded takes the instance with it. A failure ends the run: there are no dead letters.

    Its timers, if it has any, are in the store `timers_store(operator)`, in the form of `penstock/runtime/timers.py`:
    the next batch begins once one of them is due.
    """

    @abstractmethod
    def init(self, context: BatchTaskContext) -> None:
        """Called once, before the first batch."""

    @abstractmethod
    def process(self, messages: Sequence[KeyedValue], batch: BatchInfo, emit: Emit) -> None:
        """Called once in each batch, when all of its messages have come; also if there are none.

        Args:
            messages: all of them, in the order in which they came.
            batch: the batch.
            emit: passes on a message, as often as it likes. Its timestamp is the batch time.

        Raises:
            KeyFailed: the application's code raised for a key.
        """

    def close(self) -> None:  # noqa: B027 - nothing has to be closed
        """Called at most once, after the last batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec(OperatorSpec):
    """A StreamTask with stores."""

    operator = "penstock.runtime.operators.tasks:Process"
    hands_on = False
    needs_task = True
    gives_keys = True
    reads_shared_stores = True
    takes_order = True
    sends = True

    task: Callable[[], StreamTask]
    timers: Serde[Any] | None = None
    """The serde of the keys of its timers; None: it has none."""
    discards_timers: bool = False
    ends: bool = False
    """The task may define `on_end`. True for each function that makes tasks, because it does not say."""

    @property
    def uses_time(self) -> bool:
        return self.timers is not None

    @property
    def has_end(self) -> bool:
        return self.ends

    @property
    def order_matters(self) -> str:
        return "" if self.timers is None else "its task has timers, which a message may set or cancel"

    @property
    def own_stores(self) -> tuple[str, ...]:
        """The stores of the application that the task uses, without the one of its timers."""
        return tuple(name for name in self.stores if name != timers_store(self.state_id))

    def callbacks(self) -> Iterator[Callback]:
        return maker(self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTaskSpec(OperatorSpec):
    """A BatchTask with stores: it gets all messages of a batch at once."""

    operator = "penstock.runtime.operators.tasks:BatchTaskOperator"
    hands_on = False
    needs_task = True
    gives_keys = True

    task: Callable[[], BatchTask]
    deletes: tuple[str, ...] = ()
    event_time: bool = False

    @property
    def deleted_stores(self) -> tuple[str, ...]:
        return self.deletes

    @property
    def uses_time(self) -> bool:
        return self.event_time

    def callbacks(self) -> Iterator[Callback]:
        return maker(self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTaskSpec(OperatorSpec):
    """A BatchProcessor with stores: it gets all messages of a batch at once, as columns."""

    operator = "penstock.runtime.operators.column_processor:ColumnTask"
    hands_on = False
    waits_as_columns = True
    needs_task = True
    gives_keys = True

    @property
    def sends(self) -> bool:  # type: ignore[override]
        """Messages that are late."""
        return self.ordering is not None and self.ordering.late_to is not None

    processor: Callable[[], BatchProcessor]
    message_key: Serde[Any]
    message_serde: ColumnSerde
    result_serde: ColumnSerde

    def callbacks(self) -> Iterator[Callback]:
        return maker(self.processor)
