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
    """A message on its way into a task.

    `key` and `value` are decoded objects or None. `ssp`, `offset` and `timestamp` are those of the input stream's
    message that this one is, or was made from by the operators before. Made by the runtime only; it stays valid
    after the call.
    """

    key: Any
    value: Any
    origins: MessageOrigins
    row: int

    @property
    def ssp(self) -> SystemStreamPartition:
        """The input's partition."""
        return self.origins.ssp(self.row)

    @property
    def offset(self) -> int:
        """The offset in that partition."""
        return self.origins.offsets[self.row]

    @property
    def timestamp(self) -> int:
        """Epoch milliseconds."""
        return self.origins.timestamps[self.row]

    def __repr__(self) -> str:
        return (
            f"IncomingMessageEnvelope(ssp={self.ssp}, offset={self.offset}, key={self.key!r}, value={self.value!r}, "
            f"timestamp={self.timestamp})"
        )


class MessageCollector(ABC):
    """Takes what a task produces. Valid only during the call it was given to."""

    @abstractmethod
    def emit(self, *, key: Any = None, value: Any) -> None:
        """Hand a message to the operators that follow the task in the graph."""

    @abstractmethod
    def send(self, output: str, *, key: Any = None, value: Any) -> None:
        """Send a message to a declared output stream, named by its stream name or `system.stream`.

        The partition is Kafka's murmur2 over the key's bytes; without a key it is the task's own number.
        """


class TaskCoordinator(ABC):
    """Requests from the task to the job. They take effect when the running batch has ended."""

    @abstractmethod
    def commit(self) -> None:
        """Commit once this batch has ended, whatever `task.commit.ms` says."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the job after this batch, with a commit that is awaited."""


class TaskContext(ABC):
    """What a task may know of its surroundings, given to `init`."""

    @property
    @abstractmethod
    def task_name(self) -> str:
        """`Partition i`."""

    @property
    @abstractmethod
    def partition(self) -> int:
        """The number of the task, and of the partition of every input it owns."""

    @property
    @abstractmethod
    def job_name(self) -> str:
        """`job.name`."""

    @abstractmethod
    def store(self, name: str) -> KeyValueStore[Any, Any]:
        """The task's instance of a store that the operator declared. Raises ConfigError for any other name."""

    @property
    @abstractmethod
    def metrics(self) -> MetricsRegistry:
        """The task's own metrics: counters, gauges and timers, which `job.metrics()` and everything that exports
        metrics show in the group `user.<group>`.

        They count once the batch has ended: what an attempt counted that is discarded, because its batch is run again,
        does not count. After a loss of state, batches since the last checkpoint run again and count again.

        Example:
            >>> def init(self, context):
            ...     self.late = context.metrics.new_counter("orders", "late")
        """

    @property
    @abstractmethod
    def config(self) -> Mapping[str, str]:
        """The keys of the configuration that were given, with their values as text, for example `job.id`.

        Keys that begin with `app.` are the application's own. Keys that were not given are not there, and those of
        Spark are left out. It cannot be changed.
        """


class StreamTask(ABC):
    """Application code with state. One instance per task and operator, created from the class or a factory.

    Calls on one instance never overlap. Fields of the instance may cache, but are not state: when a batch is
    discarded the instance is closed and a new one made. What must last belongs in a store.
    """

    def init(self, context: TaskContext) -> None:  # noqa: B027 - optional by design
        """Called once, before the first message."""

    @abstractmethod
    def process(
        self, envelope: IncomingMessageEnvelope, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> None:
        """Handle one message. An exception ends the run, or sends the message to `task.dead.letter.stream`.

        The envelope's value must not be changed in place: other operators may get the same object.
        """

    def close(self) -> None:  # noqa: B027 - optional by design
        """Called at most once, after the last message; not when the process is killed."""
