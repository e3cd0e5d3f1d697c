"""An engine whose writes are visible at once and written later: gathered over batches, then beside the next ones.

What makes state durable is the commit, which takes the same changes from memory, so nothing depends on when RocksDB has
them. A key that changes in every batch is written once for many of them. A failed write is told at the next one; until
then reads stay right, because what was not written is still here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from pathlib import Path

from penstock.state.engine import Engine
from penstock.state.overlay import MISSING, merge_changes
from penstock.state.records import Changes, changes_bytes

_ENTRY_BYTES = 150
"""What an entry takes in memory besides the bytes of its key and value, about."""
_AT_ONCE = 500
"""Changes written at once: RocksDB's binding lets no other Python thread run meanwhile."""


class WriteBehindEngine(Engine):
    """Two layers of changes above an engine: what is gathered, and what a thread is writing. One write is under way at
    a time. Everything else is used as any engine is."""

    def __init__(self, engine: Engine, writer: Executor, gather_bytes: int) -> None:
        """Changes that take more than `gather_bytes` of memory are written; as much again may be under way."""
        self._engine = engine
        self._writer = writer
        self._gather_bytes = gather_bytes
        self._gathered: dict[bytes, bytes | None] = {}
        """Entries are only ever added or replaced; another thread may be scanning."""
        self._layer: Changes = {}
        """What is being written. It goes only once all of it can be read below."""
        self._written: Future[None] | None = None
        self._applied = self._applied_bytes = 0
        """Entries given to `apply` so far, and their bytes: an entry's size on average."""
        self._scanned = False
        """Since the last `apply`. Each scan sorts the layers' keys, so the layers of a store that is scanned should be
        gone soon."""

    def get(self, key: bytes) -> bytes | None:
        # From above to below, as changes move: at every moment the newest value is found.
        for layer in (self._gathered, self._layer):
            if (value := layer.get(key, MISSING)) is not MISSING:
                return value  # type: ignore[return-value]  # mypy does not narrow by a sentinel
        return self._engine.get(key)

    def apply(self, changes: Changes) -> None:
        """The changes are visible when this returns.

        Raises what the write before raised: then nothing of these was taken.
        """
        self._await_write()
        self._gathered.update(changes)
        self._applied += len(changes)
        self._applied_bytes += changes_bytes(changes)
        if self._scanned or self._gathered_bytes() > self._gather_bytes:
            self._begin_write()
        self._scanned = False

    def _gathered_bytes(self) -> float:
        return len(self._gathered) * (_ENTRY_BYTES + self._applied_bytes / max(1, self._applied))

    def _begin_write(self) -> None:
        """Once no write is under way."""
        self._layer = self._gathered
        self._gathered = {}
        self._written = self._writer.submit(self._write, self._layer)

    def _write(self, changes: Changes) -> None:
        items = iter(changes.items())
        while part := dict(islice(items, _AT_ONCE)):
            self._engine.apply(part)
            time.sleep(0)
        self._layer = {}

    def _await_write(self) -> None:
        if self._written is not None:
            self._written.result()

    def settle(self) -> None:
        """Wait until everything is written. Raises what a write raised."""
        self._await_write()
        if self._gathered:
            self._begin_write()
            self._await_write()

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self._scanned = True
        # Taken in this order, before the scan begins: what has moved below meanwhile is merely said twice.
        layers = self._gathered, self._layer
        entries = self._engine.scan(start, end)
        for layer in reversed(layers):
            keys = list(layer)  # at once: nothing can be added meanwhile
            changed = sorted(key for key in keys if (start is None or key >= start) and (end is None or key < end))
            if changed:
                entries = merge_changes(entries, [(key, layer[key]) for key in changed])
        return entries

    def copy_to(self, directory: Path) -> None:
        self.settle()
        self._engine.copy_to(directory)

    def close(self) -> None:
        """Wait for the write under way, whatever becomes of it. What is gathered is given up."""
        if self._written is not None:
            self._written.exception()
        self._engine.close()
