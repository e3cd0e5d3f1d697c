"""An engine whose writes are visible at once and written a moment later, while the next batch begins.

What makes state durable is the commit, which takes the same changes from memory, so nothing depends on when RocksDB has
them. A failed write is told at the next one; until then reads stay right, because what was not written is still here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from pathlib import Path

from penstock.state.engine import Engine
from penstock.state.overlay import MISSING, merge_changes
from penstock.state.records import Changes

_AT_ONCE = 500
"""Changes written at once: RocksDB's binding lets no other Python thread run meanwhile."""


class WriteBehindEngine(Engine):
    """Hands each `apply` to a thread; one is under way at a time. Everything else is used as any engine is."""

    def __init__(self, engine: Engine, writer: Executor) -> None:
        self._engine = engine
        self._writer = writer
        self._layer: Changes | None = None
        """What is being written. It goes only once all of it can be read below."""
        self._written: Future[None] | None = None

    def get(self, key: bytes) -> bytes | None:
        layer = self._layer
        if layer is not None and (value := layer.get(key, MISSING)) is not MISSING:
            return value  # type: ignore[return-value]  # mypy does not narrow by a sentinel
        return self._engine.get(key)

    def apply(self, changes: Changes) -> None:
        """The changes are visible when this returns, and must not change until the next `apply` or `settle` does.

        Raises what the write before raised: then nothing of these was taken.
        """
        self.settle()
        self._layer = changes
        self._written = self._writer.submit(self._write, changes)

    def _write(self, changes: Changes) -> None:
        items = iter(changes.items())
        while part := dict(islice(items, _AT_ONCE)):
            self._engine.apply(part)
            time.sleep(0)
        self._layer = None

    def settle(self) -> None:
        """Wait until everything is written. Raises what the write raised."""
        if self._written is not None:
            self._written.result()

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        layer = self._layer  # before the scan begins: what is already below as well is merely said twice
        below = self._engine.scan(start, end)
        if layer is None:
            return below
        changed = sorted(key for key in layer if (start is None or key >= start) and (end is None or key < end))
        return merge_changes(below, [(key, layer[key]) for key in changed])

    def copy_to(self, directory: Path) -> None:
        self.settle()
        self._engine.copy_to(directory)

    def close(self) -> None:
        """Wait for the write, whatever becomes of it."""
        if self._written is not None:
            self._written.exception()
        self._engine.close()
