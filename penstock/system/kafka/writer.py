"""Appends to topics."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import IncompatibleError
from penstock.system.base import RawRecord, SystemWriter, WriterIdentity
from penstock.system.kafka.options import KafkaOptions


class KafkaWriter(SystemWriter):
    """Made by `KafkaSystem.writer`."""

    def __init__(self, options: KafkaOptions, identity: WriterIdentity | None) -> None:
        self._options = options
        self._identity = identity

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Not built yet."""
        raise IncompatibleError(f"nothing can be appended to `{ssp}` yet")

    def close(self) -> None:
        """Nothing is held."""
