"""An operator's code that gets all messages of a batch at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from penstock.api.state.store import KeyValueStore
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.values import Counter

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
