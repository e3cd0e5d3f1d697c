"""What a key-value engine is: where a store's committed bytes are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.records import Changes


class EngineFailedError(BaseException):
    """An engine failed: its files are damaged, the disk does not answer, it was closed. The state has to be restored.

    Not an Exception, because it travels up through the code of tasks, whose own `except Exception` must not swallow it.
    """


class Engine(ABC):
    """A map of bytes ordered by unsigned bytes. It changes only through `apply`."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value, or None if the key is absent."""

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Make the changes, all or none as far as readers of this process see."""

    def load(self, changes: Changes) -> None:
        """As `apply`, for a restore: many at once, and nobody reads meanwhile."""
        self.apply(changes)

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they were when the scan began."""

    @abstractmethod
    def copy_to(self, directory: Path) -> None:
        """Make the directory, which must not exist, with files that hold what is here now. Its cost does not grow with
        the state where the engine keeps immutable files: those are linked."""

    def statistics(self) -> dict[str, int]:
        """What it says of itself, by name, for metrics: `keys` is about how many it holds. Any thread may ask; empty
        once it is closed."""
        return {}

    def measurements(self) -> dict[str, CounterValue | TimerValue]:
        """What it has counted and timed since it was opened, by name, for metrics. Any thread may ask; once it is
        closed, as it was then."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release it. No call follows but those that ask for metrics."""
