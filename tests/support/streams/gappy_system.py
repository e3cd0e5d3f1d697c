"""A system whose offsets have gaps, as those of a compacted topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import CHUNK_BYTES, OffsetRange, RawMessage, SystemReader
from penstock.system.memory import MemorySystem

_GONE = b"gone"


class GappySystem(MemorySystem):
    """Messages in memory, without those that `skip` made."""

    dense_offsets: ClassVar[bool] = False

    def reader(self) -> SystemReader:  # type: ignore[override]
        return _GappyReader(super().reader())

    def skip(self, ssp: SystemStreamPartition, offsets: int) -> None:
        """Make a gap of so many offsets."""
        self.writer(None).append(ssp, [(0, _GONE, None)] * offsets)


class _GappyReader(SystemReader):
    def __init__(self, inner: SystemReader) -> None:
        self._inner = inner

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        for chunk in self._inner.read(offsets, chunk_messages, chunk_bytes):
            if left := [message for message in chunk if message[2] != _GONE]:
                yield left

    def close(self) -> None:
        self._inner.close()
