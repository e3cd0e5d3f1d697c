"""The key-value engine, which holds a store's committed bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.records import Changes


class EngineFailedError(BaseException):
    """An engine failed: its files are damaged, the disk does not answer, it was closed. The state has to be restored.

    Not an Exception, because it travels up through the code of tasks, whose own `except Exception` must not swallow it.
    """


class Content(Protocol):
    """Bytes by key, to be read: an engine, an overlay above one, or what a layer shows of one."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def scan(self, start: bytes | None, end: bytes | None, /) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they are now."""


class EngineMoment(Protocol):
    """The content of an engine at one moment, key by key."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def release(self) -> None:
        """To be called before the engine is closed. Idempotent."""


def get_each(content: Content, keys: ByteArray) -> tuple[ByteArray, Flags]:
    """As `Engine.get_many`, one key at a time."""
    return found_in([content.get(key) for key in keys.to_arrow().to_pylist()])


def found_in(values: list[bytes | None]) -> tuple[ByteArray, Flags]:
    """The result of `Engine.get_many`, of a value for each key."""
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return ByteArray.of_list([value or b"" for value in values]), present


class Engine(ABC):
    """A map of bytes ordered by unsigned bytes. It changes only through `apply`."""

    @property
    def has_failed(self) -> bool:
        """True once a read or a write has failed: its content is not to be trusted."""
        return False

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """The value of each key, empty where there is none; and where there is one."""
        return get_each(self, keys)

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Make the changes, all or none as readers in this process see them."""

    def load(self, changes: Changes) -> None:
        """As `apply`, for a restore: many changes at once, and nobody reads meanwhile."""
        self.apply(changes)

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order, as they were when the scan began."""

    @abstractmethod
    def copy_to(self, directory: Path) -> None:
        """Make the directory, which must not exist, with files that hold the present content. The cost does not grow
        with the state if the engine keeps immutable files: those are linked."""

    def moment(self) -> EngineMoment | None:
        """The present content, which later changes do not change; None if the engine cannot keep it."""
        return None

    def statistics(self) -> dict[str, int]:
        """The engine's gauges by name, for metrics: `keys` is roughly the number of keys. Any thread may call it; empty
        once the engine is closed."""
        return {}

    def measurements(self) -> dict[str, CounterValue | TimerValue]:
        """The counters and timers since the engine was opened, by name, for metrics. Any thread may call it; after
        `close`, the last values."""
        return {}

    def measure_anew(self) -> None:  # noqa: B027 - most measure nothing
        """Begin the measurements again: the engine stays open for another epoch, and those of this one were added
        up."""

    @abstractmethod
    def close(self) -> None:
        """Release the engine. Only `statistics` and `measurements` may be called after it."""
