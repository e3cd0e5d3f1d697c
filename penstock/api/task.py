"""The low-level API: a task that handles one message at a time (Samza's StreamTask)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.api.ssp import SystemStreamPartition
from penstock.api.store import KeyValueStore
from penstock.metrics.registry import MetricsRegistry


class MessageOrigins(Protocol):
    """Where messages came from, by row."""

    @property
    def timestamps(self) -> Sequence[int]:
        """Epoch milliseconds."""

    @property
    def offsets(self) -> Sequence[int]:
        """Offsets in their partitions."""

    def ssp(self, row: int) -> SystemStreamPartition:
        """The partition."""


class IncomingMessageEnvelope(NamedTuple):
    """A message on its way into a task, as Samza's IncomingMessageEnvelope.

    `key` and `value` are decoded objects or None. `ssp`, `offset` and `timestamp` belong to the input message that this
    message is, or was made from by the operators before; `timestamp` is the event time, in epoch milliseconds, if the
    input has a function for it. Only the runtime makes envelopes. They stay valid after the
    call.

    Example:
        >>> app = ps.StreamApplication("origins")
        >>> origins = app.input("local.trips").map(lambda m: [str(m.ssp), m.offset, m.timestamp], envelope=True)
        >>> _ = origins.send_to(app.output("local.origins"))
        >>> runner = TestRunner(app).input("local.trips", ["a", "b"], partition=1, timestamp=700).run()
        >>> [message.value for message in runner.output("local.origins")]
        [['local.trips.1', 0, 700], ['local.trips.1', 1, 700]]
    """

    key: Any
    value: Any
    origins: MessageOrigins
    row: int

    @property
    def ssp(self) -> SystemStreamPartition:
        """The partition of the input that the message is from."""
        return self.origins.ssp(self.row)

    @property
    def offset(self) -> int:
        """The offset of the input message in its partition."""
        return self.origins.offsets[self.row]

    @property
    def timestamp(self) -> int:
        """The timestamp of the input message, in epoch milliseconds."""
        return self.origins.timestamps[self.row]

    def __repr__(self) -> str:
        return (
            f"IncomingMessageEnvelope(ssp={self.ssp}, offset={self.offset}, key={self.key!r}, value={self.value!r}, "
            f"timestamp={self.timestamp})"
        )


class MessageCollector(ABC):
    """Takes the messages that a task produces, as Samza's MessageCollector. Valid only during the call that gets it.

    Example:
        >>> class Split(ps.StreamTask):
        ...     def process(self, envelope, collector, coordinator):
        ...         collector.emit(key=envelope.key, value=envelope.value)
        ...         if envelope.value < 0:
        ...             collector.send("negative", key=envelope.key, value=envelope.value)
        >>> app = ps.StreamApplication("split")
        >>> _ = app.output("local.negative")
        >>> _ = app.input("local.numbers").process(Split).send_to(app.output("local.all"))
        >>> runner = TestRunner(app).input("local.numbers", [("a", 1), ("a", -2)]).run()
        >>> [[message.value for message in runner.output(name)] for name in ("local.all", "local.negative")]
        [[1, -2], [-2]]
    """

    @abstractmethod
    def emit(self, *, key: Any = None, value: Any) -> None:
        """Pass a message to the operators that follow the task in the graph.

        Args:
            key: the key, which fits the serde declared in `process(key=...)`. None for no key.
            value: the value, which fits the serde declared in `process(value=...)`.
        """

    @abstractmethod
    def send(self, output: str, *, key: Any = None, value: Any) -> None:
        """Send a message to an output stream that the application declares, at least once.

        Args:
            output: the output, `system.stream`, or its stream's name alone.
            key: the key. The partition follows from its bytes by Kafka's murmur2. Without a key it is the task's
                number.
            value: the value.

        Raises:
            ConfigError: the application has not declared this output.
            SerdeError: the key or the value does not fit the output's serdes.
        """


class TaskCoordinator(ABC):
    """Takes the task's requests to the job, which take effect when the batch has ended (Samza's TaskCoordinator).

    Example:
        >>> class Count(ps.StreamTask):
        ...     def init(self, context):
        ...         self.count = context.store("count")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.count["all"] = self.count.get("all", 0) + 1
        ...         if envelope.value == "save":
        ...             coordinator.commit()
        >>> app = ps.TaskApplication("count", Count)
        >>> app.store("count")
        >>> app.input("local.commands")
        >>> runner = TestRunner(app, partitions=1).input("local.commands", ["a", "save"]).run()
        >>> _ = runner.input("local.commands", ["b"]).run().crash().restore()
        >>> runner.store("count")
        {'all': 2}
    """

    @abstractmethod
    def commit(self) -> None:
        """Ask for a commit at the end of this batch, whatever `task.commit.ms` says."""

    @abstractmethod
    def shutdown(self) -> None:
        """Ask the job to stop after this batch, with a last commit that it waits for."""


class TaskContext(ABC):
    """The task's stores, metrics and configuration, as Samza's TaskContext. `StreamTask.init` gets it.

    Example:
        >>> class Named(ps.StreamTask):
        ...     def init(self, context):
        ...         self.name = [context.job_name, context.task_name, context.config["app.unit"]]
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         collector.emit(value=self.name)
        >>> app = ps.StreamApplication("names")
        >>> _ = app.input("local.trips").process(Named).send_to(app.output("local.names"))
        >>> runner = TestRunner(app, partitions=1, config={"app.unit": "miles"}).input("local.trips", ["a"]).run()
        >>> [message.value for message in runner.output("local.names")]
        [['names', 'Partition 0', 'miles']]
    """

    @property
    @abstractmethod
    def task_name(self) -> str:
        """The task's name, `Partition i`, as Samza names it."""

    @property
    @abstractmethod
    def partition(self) -> int:
        """The task's number. The task owns the partition of this number of every input and every shuffle."""

    @property
    @abstractmethod
    def job_name(self) -> str:
        """The job's name, `job.name`."""

    @abstractmethod
    def store(self, name: str) -> KeyValueStore[Any, Any]:
        """The task's instance of a store.

        Args:
            name: a store that the operator names in `process(stores=[...])`.

        Raises:
            ConfigError: the operator does not name this store.
        """

    @property
    @abstractmethod
    def metrics(self) -> MetricsRegistry:
        """The task's registry of metrics: counters, gauges and timers.

        `job.metrics()` and everything that exports metrics show them in the group `user.<group>`. They count once the
        batch has ended: what a discarded attempt counted does not count. After a loss of state, the batches since the
        last checkpoint run again, and count again.

        Example:
            >>> def init(self, context):
            ...     self.late = context.metrics.new_counter("orders", "late")
        """

    @property
    @abstractmethod
    def config(self) -> Mapping[str, str]:
        """The configuration that was given, as texts by key, for example `job.id`. It cannot be changed.

        Keys that begin with `app.` are the application's own. Keys that were not given are absent, and so are those of
        Spark and of systems, which may hold secrets.
        """


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
        stream it ends the run.

        Args:
            envelope: the message. Its value must not be changed in place: other operators may get the same object.
            collector: takes the messages that the task produces.
            coordinator: takes requests to the job.
        """

    def close(self) -> None:  # noqa: B027 - optional by design
        """Release what `init` opened. Called at most once, after the last message; not if the process is killed."""
