"""Reads offset ranges of topics."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.system.base import CHUNK_BYTES, OffsetRange, RawMessage, SystemReader
from penstock.system.kafka.options import KafkaOptions


class KafkaReader(SystemReader):
    """Made by `KafkaSystem.reader`."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """Not built yet."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""
