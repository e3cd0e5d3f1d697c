"""The bytes of the values used last, so that a hot key costs no read of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from penstock.state.engines.overlay import MISSING
from penstock.state.records import Changes


class ValueCache:
    """A bounded map from key bytes to value bytes, absent keys included (as None).

    It keeps bytes and no objects: `get` decodes them each time. An object that two calls shared could be changed
    through one key and seen through another, and the result of a read would depend on the content of the cache.

    Two generations instead of a list of uses: a hit costs one dict lookup. When the young one is full it becomes the
    old one, and entries of the old one that were not used since are forgotten. The last `entries` keys used are
    therefore always there, and at most twice as many.
    """

    def __init__(self, entries: int) -> None:
        self._entries = max(1, entries)
        self.young: dict[bytes, bytes | None] = {}
        """The young generation. A store looks here first, before it calls `get`."""
        self._old: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> Any:
        """The value's bytes, None if the key is known to be absent, or MISSING."""
        value: Any = self.young.get(key, MISSING)
        if value is MISSING:
            value = self._old.get(key, MISSING)
            if value is not MISSING:
                self.put(key, value)
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        young = self.young
        young[key] = value
        if len(young) >= self._entries:
            self._old = young
            self.young = {}

    def put_all(self, changes: Changes) -> None:
        """Remember every value; if there are too many, the last ones."""
        if len(changes) >= self._entries:
            self._old = {key: changes[key] for key in islice(changes, len(changes) - self._entries, None)}
            self.young = {}
            return
        if len(self.young) + len(changes) >= self._entries:
            self._old = self.young
            self.young = {}
        self.young.update(changes)

    def forget(self, keys: Iterable[bytes] | None) -> None:
        if keys is None:
            self.young, self._old = {}, {}
            return
        for key in keys:
            self.young.pop(key, None)
            self._old.pop(key, None)
