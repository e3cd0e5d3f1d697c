"""An operator's code that gets all messages of a batch at once, as columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.api.store import ColumnStore, KeyValueStore
from penstock.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.arrays.given import ColumnLike, RowsLike


class BatchProcessorContext(Protocol):
    """The services of a BatchProcessor, valid for its whole life.

    Example:
        >>> class Counting(ps.BatchProcessor):
        ...     def init(self, context: ps.BatchProcessorContext) -> None:
        ...         self.counts = context.store("counts")
        ...         self.messages = context.metrics.new_counter("counting", "messages")
        ...
        ...     def process(self, batch, collector):
        ...         self.messages.inc(len(batch))
    """

    @property
    def task(self) -> int:
        """The number of the task that it runs in."""

    @property
    def config(self) -> Mapping[str, str]:
        """The configuration as tasks see it."""

    @property
    def metrics(self) -> MetricsRegistry:
        """The metrics of the task."""

    def store(self, name: str) -> ColumnStore[Any]:
        """One of the operator's stores whose values are rows of a schema (`ps.Columns`).

        Args:
            name: the store's name.

        Raises:
            KeyError: the operator does not have it, or its values are no rows.
        """

    def row_store(self, name: str) -> KeyValueStore[Any, Any]:
        """One of the operator's stores, for access to one key at a time.

        Args:
            name: the store's name.

        Raises:
            KeyError: the operator does not have it.
        """


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """All messages of a task in one batch, in columns of equal length."""

    values: pa.RecordBatch
    """The values, with the columns of the stream's schema. A message without a value has nulls in all of them."""
    keys: pa.Array
    """The keys, as a column of the type that their serde reads: text, bytes or numbers."""
    timestamps: pa.Array
    """The event times, in epoch milliseconds."""
    batch_time_ms: int
    """The batch time, in epoch milliseconds."""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, name: str) -> pa.Array:
        """The column of the values with this name. Raises KeyError if there is none."""
        return self.values[name]


class BatchCollector(Protocol):
    """Takes the messages that a BatchProcessor emits.

    Example:
        >>> class Late(ps.BatchProcessor):
        ...     def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        ...         late = pa.compute.greater(batch["delay"], 60)
        ...         collector.emit(batch.keys.filter(late), batch.values.filter(late))
        >>> import pyarrow as pa
        >>> app = ps.StreamApplication("late")
        >>> flights = app.input("local.flights", value=ps.Columns(pa.schema({"delay": pa.int64()})))
        >>> _ = flights.process_batch(Late).send_to(app.output("local.late"))
        >>> runner = TestRunner(app).input("local.flights", [("N1", {"delay": 90}), ("N2", {"delay": 5})]).run()
        >>> [(message.key, message.value) for message in runner.output("local.late")]
        [('N1', {'delay': 90})]
    """

    def emit(self, keys: ColumnLike, values: RowsLike) -> None:
        """Send messages on.

        Args:
            keys: their keys, as a column that the serde of the keys takes: Arrow's, Polars', pandas' or NumPy's.
            values: their values, as many rows as keys, with the columns of the operator's result: a RecordBatch, a
                Table, or a DataFrame.

        Raises:
            ConfigError: no operator follows `process_batch`, so that the messages would be lost.
            ValueError: the values do not fit the schema, or there are fewer or more keys.
        """


class BatchProcessor(ABC):
    """Processes all messages of its task in a batch at once, as columns of Arrow.

    Example:
        >>> import pyarrow as pa
        >>> class Highest(ps.BatchProcessor):
        ...     def init(self, context):
        ...         self.highest = context.store("highest")
        ...
        ...     def process(self, batch, collector):
        ...         table = pa.table({"key": batch.keys, "miles": batch["miles"]})
        ...         best = table.group_by("key").aggregate([("miles", "max")])
        ...         keys, miles = best["key"].combine_chunks(), best["miles_max"].combine_chunks()
        ...         before = self.highest.get_many(keys)["miles"]
        ...         highest = pa.record_batch({"miles": pa.compute.max_element_wise(miles, before)})
        ...         self.highest.put_many(keys, highest)
        ...         collector.emit(keys, highest)
        >>> miles = ps.Columns(pa.schema({"miles": pa.int64()}))
        >>> app = ps.StreamApplication("highest")
        >>> app.store("highest", value=miles)
        >>> flights = app.input("local.flights", value=miles)
        >>> highest = flights.process_batch(Highest, stores=["highest"], schema=miles.schema)
        >>> _ = highest.send_to(app.output("local.highest"))
        >>> runner = TestRunner(app).input("local.flights", [("N1", {"miles": 7}), ("N1", {"miles": 9})]).run()
        >>> [message.value for message in runner.output("local.highest")]
        [{'miles': 9}]
    """

    def init(self, context: BatchProcessorContext) -> None:  # noqa: B027
        """Called once, before the first batch.

        Args:
            context: the services of the processor.
        """

    @abstractmethod
    def process(self, batch: MessageBatch, collector: BatchCollector) -> None:
        """Process the messages of a batch. Not called for a batch without messages.

        What it writes to stores belongs to the batch, and is undone with it. A failure ends the run: a batch as a whole
        is no dead letter.

        Args:
            batch: the messages. Those of one input partition are in their order.
            collector: takes the results.
        """

    def close(self) -> None:  # noqa: B027
        """Called at most once, after the last batch."""
