"""The stores of a container on its host: their places, the content of each, and the entries that are about to be
written to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.config.model import JobConfig
from penstock.errors import CorruptError
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.side.engine import SidePositions
from penstock.side.fill.entries import SideEntries
from penstock.side.fill.sources import SidePart, SideStreamEnds
from penstock.side.folders import (
    OpenedSide,
    ReuseTarget,
    SideFolder,
    SideFolders,
    emptied,
    open_beside,
    open_side_engine,
    remove_others,
)
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


logger = logging.getLogger(__name__)


class SideHomes:
    """The folders of one container in one epoch."""

    def __init__(
        self,
        config: JobConfig,
        folders: SideFolders,
        fingerprints: Mapping[str, str],
        fills: Callable[[SidePart], Callable[[Path], bool] | None],
    ) -> None:
        """
        Args:
            folders: those of the container in this epoch.
            fingerprints: by store, as the driver made them at the start.
            fills: for a part, a callback that fills a folder from its backup; None if it has no backup.
        """
        self._config = config
        self._fingerprints = fingerprints
        self._folders = folders
        self._fills = fills
        self._numbers = count(1)

    def open(self, part: SidePart, ends: SideStreamEnds) -> OpenedSide:
        wanted = ReuseTarget(
            self.fingerprint(part),
            {ssp: ends.offsets[ssp] for ssp in part.ssps},
            {ssp: ends.complete_from[ssp] for ssp in part.ssps},
            {each.stream: ends.identities[each.stream] for each in part.side.streams},
            ends.deletions_kept_ms,
        )
        return open_side_engine(
            self._config.store(part.spec.name),
            self._folders,
            part.task,
            wanted,
            now_ms=SYSTEM_CLOCK.now_ms(),
            max_age_ms=self._config.side_inputs.max_age_ms,
            fill=self._fills(part),
        )

    def is_free(self, part: SidePart) -> bool:
        """True if nobody on this host uses the folder of a task's part."""
        folder = SideFolder.lock_beside(self._folders.of_task(part.spec.name, part.task or 0))
        if folder is not None:
            folder.release()
        return folder is not None

    def emptied(self, part: SidePart, opened: OpenedSide) -> OpenedSide:
        return emptied(self._config.store(part.spec.name), opened)

    def beside(self, part: SidePart) -> OpenedSide:
        return open_beside(self._config.store(part.spec.name), self._folders, part.task, next(self._numbers))

    def remove_others(self, specs: Iterable[StoreSpec], tasks: int) -> None:
        """Remove the folders that other programs of the job have left on this host. Failures are logged."""
        kept = {
            spec.name: spec.side.broadcast
            for spec in specs
            if isinstance(spec.side, SideInputs) and self._config.store(spec.name).factory != "memory"
        }
        try:
            remove_others(self._folders, kept, tasks)
        except OSError as error:
            logger.warning("folders of side stores that the job no longer has were not removed: %s", error)

    def fingerprint(self, part: SidePart) -> str:
        """Identifies everything but the messages that the part's content is made from. If a task takes only its own
        keys, that includes the number of tasks."""
        found = self._fingerprints[part.spec.name]
        return f"{found}-of-{part.tasks}" if part.spread else found


def discard(opened: OpenedSide) -> None:
    """Close a store that is not used again, and remove it."""
    replace(opened, outlives=False).close()
