"""The classes whose methods tasks and operators run: StreamTask of the low-level API, which handles one message at a
time (Samza's StreamTask), and BatchProcessor, which gets all messages of a batch at once, as columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.store import ColumnStore, KeyValueStore
from penstock.api.task_context import MessageCollector, TaskContext, TaskCoordinator
from penstock.api.time.firing import ExpiredTimer
from penstock.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.arrays.given import ColumnLike, RowsLike


class StreamTask(ABC):
    """Application code that handles one message at a time, as Samza's StreamTask.

    Each task and operator has one instance, made by the class or the function given to `process`. Calls on one instance
    never overlap. Fields of the instance may cache, but they are not state: when a batch is discarded, its instance is
    closed and a new one is made. State belongs in a store.

    Example:
        >>> class Total(ps.StreamTask):
        ...     def init(self, context):
        ...         self.totals = context.store("totals")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         total = self.totals.get(envelope.key, 0) + envelope.value
        ...         self.totals[envelope.key] = total
        ...         collector.emit(key=envelope.key, value=total)
        >>> app = ps.StreamApplication("totals")
        >>> app.store("totals")
        >>> totals = app.input("local.trips").process(Total, stores=["totals"])
        >>> _ = totals.send_to(app.output("local.totals"))
        >>> runner = TestRunner(app).input("local.trips", [("N1", 5), ("N1", 7)]).run()
        >>> [message.value for message in runner.output("local.totals")], runner.store("totals")
        ([5, 12], {'N1': 12})
    """

    def init(self, context: TaskContext) -> None:  # noqa: B027 - optional by design
        """Prepare the task. Called once, before its first message.

        Args:
            context: the task's stores, metrics and configuration.
        """

    @abstractmethod
    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> None:
        """Handle one message.

        An exception undoes the writes of this call and sends the message to `task.dead.letter.stream`. Without such a
        stream, the exception ends the run.

        Args:
            envelope: the message. Its value must not be changed in place: other operators may get the same object.
            collector: takes the messages that the task produces.
            coordinator: takes requests to the job.
        """

    def on_timer(self, timer: ExpiredTimer, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
        """Handle a timer that fires. A task that schedules timers defines it.

        A timer fires when its time has come. At the end of a stream and at a drain, all timers fire; `timer.firing`
        marks those whose time has not come. With `timers_at_drain="discard"`, a drain drops these.

        Timers fire by their time, then by the bytes of their keys, then by name. A message that is emitted here has the
        timer's time as its timestamp, or the batch time for a timer in processing time. It is never late at a later
        operator: if a timer was scheduled for a time that the watermark had passed, the watermark replaces its time. An
        exception undoes the writes of this call and sends operator, key, time and name of the timer to
        `task.dead.letter.stream`; the timer does not fire again. Without such a stream, the exception ends the run.

        Args:
            timer: the timer. It is no longer scheduled.
            collector: takes the messages that the task produces.
            coordinator: takes requests to the job.
        """
        raise NotImplementedError(f"{type(self).__qualname__} schedules timers but does not define on_timer")

    def on_end(self, collector: MessageCollector, coordinator: TaskCoordinator) -> None:  # noqa: B027
        """The stream has ended: handle what the operator still keeps. Called once, after the last message and the last
        timer of this operator, and before later operators end.

        A run with `until="latest"` ends the stream, unless it has `close=False`; so do inputs that are marked as ended.
        Messages that are emitted here have the operator's watermark as their timestamp, or the batch time if it has
        none. Timers can no longer be scheduled.

        Args:
            collector: takes the messages that the task produces.
            coordinator: takes requests to the job.

        Example:
            >>> class Total(ps.StreamTask):
            ...     def init(self, context):
            ...         self.totals = context.store("totals")
            ...
            ...     def process(self, envelope, collector, coordinator):
            ...         self.totals["all"] = self.totals.get("all", 0) + envelope.value
            ...
            ...     def on_end(self, collector, coordinator):
            ...         collector.emit(value=self.totals.get("all", 0))
            >>> app = ps.StreamApplication("totals")
            >>> app.store("totals")
            >>> _ = app.input("local.trips").process(Total, stores=["totals"]).send_to(app.output("local.totals"))
            >>> runner = TestRunner(app, partitions=1).input("local.trips", [5, 7]).end_inputs()
            >>> [message.value for message in runner.output("local.totals")]
            [12]
        """

    def close(self) -> None:  # noqa: B027 - optional by design
        """Release what `init` opened. Called at most once, after the last message, but not if the process is killed."""


class WindowableTask(StreamTask):
    """A task that is also called from time to time, as Samza's WindowableTask.

    `window` is called in the first batch of each period of `task.window.ms`, before the messages of that batch. Periods
    begin at multiples of `task.window.ms` since 1970 in batch time. A new period begins a batch although no message
    comes. After a stop of several periods it is called once. Nothing is stored for it: whether a batch calls it
    follows from its time and that of the batch before, and every attempt of the batch agrees. If `task.window.ms` is
    not set, it is never called.

    Example:
        >>> class Rate(ps.WindowableTask):
        ...     def init(self, context):
        ...         self.counts = context.store("counts")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.counts["all"] = self.counts.get("all", 0) + 1
        ...
        ...     def window(self, collector, coordinator):
        ...         collector.emit(value=self.counts.get("all", 0))
        ...         del self.counts["all"]
        >>> app = ps.StreamApplication("rates")
        >>> app.store("counts")
        >>> _ = app.input("local.visits").process(Rate, stores=["counts"]).send_to(app.output("local.rates"))
        >>> runner = TestRunner(app, partitions=1, config={"task.window.ms": 60_000})
        >>> runner = runner.input("local.visits", ["a", "b"]).run().advance_time(60_000)
        >>> [message.value for message in runner.output("local.rates")]
        [2]
    """

    @abstractmethod
    def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
        """A new period has begun. What is emitted here has the batch time as its timestamp.

        Args:
            collector: takes the messages that the task produces.
            coordinator: takes requests to the job.
        """


class DrainListenerTask(StreamTask):
    """A task that is called when its run drains, as Samza's DrainListenerTask.

    Example:
        >>> class Total(ps.DrainListenerTask):
        ...     def init(self, context):
        ...         self.totals = context.store("totals")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.totals["all"] = self.totals.get("all", 0) + envelope.value
        ...
        ...     def on_drain(self, collector, coordinator):
        ...         collector.emit(value=self.totals.get("all", 0))
        >>> app = ps.StreamApplication("totals")
        >>> app.store("totals")
        >>> _ = app.input("local.trips").process(Total, stores=["totals"]).send_to(app.output("local.totals"))
        >>> runner = TestRunner(app, partitions=1).input("local.trips", [5, 7]).run().drain()
        >>> [message.value for message in runner.output("local.totals")]
        [12]
    """

    @abstractmethod
    def on_drain(self, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
        """The run drains: handle what the task still keeps. Called once in the batch that drains, after the last
        message and the last timer of this operator, and before the operators behind it drain.

        It may read and write stores, and emit and send. What is emitted here has the operator's watermark as its
        timestamp, or the batch time if it has none. Timers can no longer be scheduled. If it raises, the run ends with
        the error and has not drained: the next start drains again.

        Args:
            collector: takes the messages that the task produces.
            coordinator: takes requests to the job.
        """


class OperatorTask(StreamTask):
    """The task of an operator of Penstock's own. What it keeps is in a store, so that nothing need follow it."""


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
