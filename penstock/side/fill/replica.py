"""The content of one store, and the entries that are about to be written to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.api.ssp import SystemStreamPartition
from penstock.base.clock import SYSTEM_CLOCK
from penstock.errors import CorruptError
from penstock.side.fill.entries import SideEntries
from penstock.side.fill.parts import SidePart
from penstock.side.store.folders import OpenedSide
from penstock.side.store.positions import SidePositions
from penstock.state.engines.engine import EngineFailedError
from penstock.state.records import Changes
from penstock.system.base import RawMessage


class SideReplica:
    """A part with its engine. Written by one thread."""

    def __init__(
        self, part: SidePart, opened: OpenedSide, entries: SideEntries, positions: SidePositions, *, new: bool = False
    ) -> None:
        """`positions`: those of the content; or its start, if it is `new` and empty."""
        self.part = part
        self.opened = opened
        self.engine = engine = opened.engine
        self._entries = entries
        self._written = positions
        self._flushed: SidePositions | None = None if new else positions
        self.reached: dict[SystemStreamPartition, int] = dict(positions.next_offsets)
        """The next offset of each partition, counting the entries that are not written yet."""
        self._untouched = set(positions.next_offsets) if new else set()
        """The partitions that nothing was read from yet, while the engine is filled from empty."""
        self._torn: set[SystemStreamPartition] = set()
        entries.begin(engine, written=False)

    def begins_with(self, ssp: SystemStreamPartition) -> bool:
        """True if nothing of the partition was read before: then the messages that compaction has left are enough.
        False from the next call on."""
        begins = ssp in self._untouched
        self._untouched.discard(ssp)
        if begins:
            self._torn.add(ssp)
        return begins

    def is_torn(self, ssp: SystemStreamPartition) -> bool:
        """True if the compacted rest of a partition was not read to its end: then the messages read from it are of
        no use."""
        return ssp in self._torn

    def has_whole(self, ssp: SystemStreamPartition) -> None:
        self._torn.discard(ssp)

    @property
    def pending_bytes(self) -> int:
        """Estimated memory of the entries that are not written yet."""
        return self._entries.size_bytes

    def take(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage], reached: int) -> None:
        """Make entries from the messages that are new. `reached` is the offset after them. Raises
        MessageFailedError; then `drop` must follow."""
        own = self.reached[ssp]
        if messages and messages[0][0] < own:
            messages = [message for message in messages if message[0] >= own]
        if messages:
            self._entries.add(ssp, messages)
        self.reached[ssp] = max(own, reached)

    def drop(self) -> None:
        self._entries.begin(self.engine, written=False)
        self.reached = dict(self._written.next_offsets)

    def write(self) -> None:
        """Write the entries. Raises as `SideEngine.write`."""
        self._put(self.engine.write, self._moved())

    def load(self, *, complete: bool = False) -> None:
        """As `write`, for very many. `complete`: the store is caught up now, and its content whole."""
        positions = self._moved()
        self._put(self.engine.load, replace(positions, complete=True) if complete else positions)

    def flush(self) -> bool:
        """Make everything written survive the process. Returns False if there was nothing new."""
        if self._flushed == self._written:
            return False
        written = self._written
        with self._needed():
            self.engine.flush()
        self._flushed = written
        return True

    @contextmanager
    def _needed(self) -> Iterator[None]:
        """Treat damage as an engine that failed: it cannot be tried again, because the content has to be made again."""
        try:
            yield
        except CorruptError as error:
            raise EngineFailedError(f"{self.part.name} is damaged: {error}") from error

    def _moved(self) -> SidePositions:
        return self._written.moved(self.reached, SYSTEM_CLOCK.now_ms())

    def _put(self, put: Callable[[Changes, SidePositions], None], positions: SidePositions) -> None:
        with self._needed():
            put(self._entries.changes, positions)
        self._written = positions
        self._entries.begin(self.engine, written=True)
