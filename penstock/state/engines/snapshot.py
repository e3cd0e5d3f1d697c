"""The content of an engine at one moment, which can be read while the engine changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from penstock.state.engines.engine import EngineFailedError


class EngineSnapshot(ABC):
    """The content of an engine at one moment. Any thread may read it; the engine's owner may release it meanwhile."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value, or None if the key was absent. Raises EngineFailedError once the snapshot is released."""

    @abstractmethod
    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end (None: unbounded), in order. Raises EngineFailedError once the snapshot
        is released, in the middle of a scan as well."""

    @abstractmethod
    def release(self) -> None:
        """Idempotent."""


def released() -> EngineFailedError:
    return EngineFailedError("the view that is read was released: the batch for which it was taken has ended")
