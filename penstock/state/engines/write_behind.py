"""An engine whose writes are visible at once and written later: gathered over batches, then beside the next ones.

State becomes durable by the commit, which takes the same changes from memory, so nothing depends on when RocksDB has
them. A key that changes in every batch is written once for many. A failed write is raised at the next one; until
then reads stay right, because the unwritten changes are still here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from pathlib import Path

from penstock.metrics.snapshot import CounterValue, TimerValue
from penstock.state.engines.engine import Engine
from penstock.state.engines.gaps import Gaps
from penstock.state.engines.overlay import Overlay
from penstock.state.records import Changes, changes_bytes

_ENTRY_BYTES = 150
"""The approximate memory of an entry besides the bytes of its key and value."""
_AT_ONCE = 500
"""Changes written at once: RocksDB's binding lets no other Python thread run meanwhile."""


class WriteBehindEngine(Engine):
    """Gathers changes above an engine until a thread writes all of them. All other calls go to the engine."""

    def __init__(self, engine: Engine, writer: Executor, gather_bytes: int) -> None:
        """The changes are written once they take more than `gather_bytes` of memory."""
        self._engine = engine
        self._writer = writer
        self._gather_bytes = gather_bytes
        self._lock = threading.RLock()
        """Guards the overlay's changes and their order: an attempt that was given up may still be scanning."""
        self._gaps = Gaps()
        """The gaps in all that readers see, so they outlive the gathered changes."""
        self._above = Overlay(engine, self._gaps, self._lock)
        """The changes gathered or being written. They go only once all of them can be read below."""
        self._written: Future[None] | None = None
        self._applied = self._applied_bytes = 0
        """Entries given to `apply` so far, and their bytes: for the average size of an entry."""

    def get(self, key: bytes) -> bytes | None:
        return self._above.get(key)

    def apply(self, changes: Changes) -> None:
        """Make the changes visible. Waits for a write under way.

        Raises the error of the write before: then none of these changes was taken.
        """
        self._await_write()
        with self._lock:
            self._above.update(changes)
        self._applied += len(changes)
        self._applied_bytes += changes_bytes(changes)
        if self._bytes_above() > self._gather_bytes:
            self._begin_write()

    def _bytes_above(self) -> float:
        return len(self._above.changes) * (_ENTRY_BYTES + self._applied_bytes / max(1, self._applied))

    def _begin_write(self) -> None:
        self._written = self._writer.submit(self._write)

    def _write(self) -> None:
        items = iter(self._above.changes.items())
        while part := dict(islice(items, _AT_ONCE)):
            self._engine.apply(part)
            time.sleep(0)
        self._above = Overlay(self._engine, self._gaps, self._lock)

    def _await_write(self) -> None:
        if self._written is not None:
            self._written.result()

    def settle(self) -> None:
        """Wait until everything is written. Raises the error of a write."""
        self._await_write()
        if self._above.changes:
            self._begin_write()
            self._await_write()

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._above.scan(start, end)

    def copy_to(self, directory: Path) -> None:
        self.settle()
        self._engine.copy_to(directory)

    def statistics(self) -> dict[str, int]:
        """Excludes changes that are gathered and not written yet."""
        return self._engine.statistics()

    def measurements(self) -> dict[str, CounterValue | TimerValue]:
        return self._engine.measurements()

    def close(self) -> None:
        """Wait for the write under way, even if it fails. Gathered changes are given up."""
        if self._written is not None:
            self._written.exception()
        self._engine.close()
