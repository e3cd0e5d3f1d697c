"""A store that can take back the writes of one message."""

from __future__ import annotations

from typing import Any

from penstock.state.engines.overlay import MISSING, Overlay
from penstock.state.stores.task_store import StoreLayer, TaskStore


class UndoableStore(StoreLayer):
    """The writes since the last `mark` can be undone, for jobs with a dead-letter stream."""

    def __init__(self, inner: TaskStore) -> None:
        super().__init__(inner)
        self._put = inner.put
        self._key_bytes = inner.key_bytes
        self._overlay = inner.overlay
        self._journal: list[tuple[bytes, Any]] = []
        """(key, its former change in the overlay or MISSING) of each write since the mark, in order."""

    def begin(self, time_ms: int = 0) -> Overlay:
        self._overlay = self.inner.begin(time_ms)
        return self._overlay

    def mark(self) -> None:
        self._journal.clear()

    def undo(self) -> None:
        self._overlay.undo(self._journal)

    def put(self, key: Any, value: Any) -> None:
        key_bytes = self._key_bytes(key)
        self._journal.append((key_bytes, self._overlay.changes.get(key_bytes, MISSING)))
        self._put(key, value)
