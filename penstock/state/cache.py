"""Decoded values, so that a hot key costs neither a read nor a decode."""

from __future__ import annotations

from typing import Any

from penstock.state.overlay import MISSING


class ObjectCache:
    """A bounded map from key bytes to decoded values, absent keys included (as None).

    Two generations instead of a list of uses: a hit costs one dict lookup. When the young one is full it becomes the
    old one, and what was in the old one and not used since is forgotten. So the last `entries` keys used are always
    there, and at most twice as many.
    """

    def __init__(self, entries: int) -> None:
        self.spare = max(1, entries) - 1
        """A young generation smaller than this may be written without `put`."""
        self.young: dict[bytes, Any] = {}
        """The young generation; a store looks here first, before it calls `get`."""
        self._old: dict[bytes, Any] = {}

    def get(self, key: bytes) -> Any:
        """The value, or MISSING."""
        value = self.young.get(key, MISSING)
        if value is MISSING:
            value = self._old.get(key, MISSING)
            if value is not MISSING:
                self.put(key, value)
        return value

    def put(self, key: bytes, value: Any) -> None:
        """Remember the value."""
        young = self.young
        young[key] = value
        if len(young) > self.spare:
            self._old = young
            self.young = {}

    def forget(self, key: bytes) -> None:
        """Drop what is known of the key."""
        self.young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        self.young = {}
        self._old = {}
