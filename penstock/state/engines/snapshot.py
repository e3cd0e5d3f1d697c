"""What an engine held at one moment, to be read while it changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from penstock.state.engines.engine import EngineFailedError


class Snapshot(ABC):
    """What an engine held when it was taken. Any thread may read it; the engine's owner may release it meanwhile."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value it had, or None if the key was absent. Raises EngineFailedError once it is released."""

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order. Raises EngineFailedError once the snapshot
        is released, in the middle of a scan as well."""

    @abstractmethod
    def release(self) -> None:
        """Let go of what it holds. Idempotent."""


def released() -> EngineFailedError:
    """What reading a released snapshot raises."""
    return EngineFailedError("the view that is read was released: the batch for which it was taken has ended")
