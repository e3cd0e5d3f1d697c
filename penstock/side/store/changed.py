"""The keys of a side store that were written lately, so that a cache drops only those."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import chain

MOST_KEYS = 50_000


class ChangedKeys:
    """The keys of the latest writes. Not thread-safe."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self.version = 0
        self._most = most_keys
        self._writes: deque[Collection[bytes]] = deque()
        """The keys of the latest writes, the newest at the right."""
        self._keys = 0

    def add(self, keys: Collection[bytes]) -> None:
        self.version += 1
        self._writes.append(keys)
        self._keys += len(keys)
        while self._keys > self._most:
            self._keys -= len(self._writes.popleft())

    def forget(self) -> None:
        """Count a write of many keys, and forget all keys."""
        self.version += 1
        self._writes.clear()
        self._keys = 0

    def since(self, version: int) -> Iterable[bytes] | None:
        """The keys written after a version; None if they are no longer known."""
        missing = self.version - version
        if missing > len(self._writes):
            return None
        return list(chain.from_iterable(list(self._writes)[len(self._writes) - missing :]))
