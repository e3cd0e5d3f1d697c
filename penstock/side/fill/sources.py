"""Reads the streams of side inputs, for one thread of a container."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, System, SystemAdmin, SystemReader

logger = logging.getLogger(__name__)


class GoneError(Exception):
    """Messages that a store needs are gone: they were compacted or deleted, or the stream was created again. The
    store has to be filled from the beginning."""


@dataclass(slots=True)
class SideStreamEnds:
    """The partitions' offsets and the streams' identities at one moment."""

    offsets: dict[SystemStreamPartition, PartitionOffsets] = field(default_factory=dict)
    complete_from: dict[SystemStreamPartition, int] = field(default_factory=dict)
    identities: dict[SystemStream, str | None] = field(default_factory=dict)
    deletions_kept_ms: dict[SystemStream, int] = field(default_factory=dict)
    """Only of streams that lose deletions with time."""

    def upcoming(self, ssp: SystemStreamPartition) -> int:
        return self.offsets[ssp].upcoming


class SideSources:
    """The readers and admins of the systems that hold side inputs, opened on demand. Used by one thread."""

    def __init__(self, systems: Mapping[str, System]) -> None:
        self._systems = systems
        self._admins: dict[str, SystemAdmin] = {}
        self._readers: dict[str, SystemReader] = {}

    def ends(self, stream: SystemStream) -> dict[int, PartitionOffsets]:
        """The offsets of its partitions. Raises NotFoundError if there is no such stream."""
        return self._admin(stream).offsets(stream.stream)

    def identity(self, stream: SystemStream) -> str | None:
        """Distinguishes it from an earlier stream of its name; None if the system cannot."""
        return self._admin(stream).stream_identity(stream.stream)

    def complete_from(self, stream: SystemStream) -> dict[int, int]:
        """The offset from which each partition has every message. Raises NotFoundError if there is no such stream."""
        return self._admin(stream).complete_from(stream.stream)

    def deletions_kept_ms(self, stream: SystemStream) -> int | None:
        """See `SystemAdmin.deletions_kept_ms`. Raises NotFoundError if there is no such stream."""
        return self._admin(stream).deletions_kept_ms(stream.stream)

    def compacts(self, stream: SystemStream) -> bool:
        """True if its partitions may have gaps: then the messages that compaction has left are read."""
        return self._systems[stream.system].compacts_on_request

    def read(
        self, ssp: SystemStreamPartition, start: int, end: int, most: int, *, what_is_left: bool = False
    ) -> Iterator[list[RawMessage]]:
        """The messages of a range, at most `most` at once; `what_is_left`: those that compaction has left.

        Raises:
            GoneError: one of the messages is gone; or the partition was compacted while it was read.
            RetryableError: the system failed.
        """
        reader = self._readers.get(ssp.system)
        if reader is None:
            reader = self._readers[ssp.system] = self._systems[ssp.system].reader()
        wanted = OffsetRange(ssp, start, end)
        try:
            if what_is_left and self.compacts(ssp.system_stream):
                yield from reader.read_compacted(wanted, most)
            else:
                yield from reader.read(wanted, most)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._drop(ssp.system)
            if isinstance(error, NotFoundError):
                self.ends(ssp.system_stream)  # raises if there is no stream any more
                raise GoneError(str(error)) from error
            raise

    def close(self) -> None:
        for name in list(self._readers):
            self._drop(name)
        admins, self._admins = self._admins, {}
        for name, admin in admins.items():
            try:
                admin.close()
            except Exception:
                logger.exception("closing the admin of system `%s` failed", name)

    def _admin(self, stream: SystemStream) -> SystemAdmin:
        found = self._admins.get(stream.system)
        if found is None:
            found = self._admins[stream.system] = self._systems[stream.system].admin()
        return found

    def _drop(self, system: str) -> None:
        reader = self._readers.pop(system, None)
        try:
            if reader is not None:
                reader.close()
        except Exception:
            logger.exception("closing a reader of system `%s` failed", system)
