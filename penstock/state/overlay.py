"""Writes above an engine: a batch's, until the batch has ended, and those that are written later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from sortedcontainers import SortedSet

from penstock.state.engine import Engine


class _Missing:
    pass


MISSING: Final = _Missing()


class Overlay:
    """Net changes to one store, read through by get and scan. Never touches the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.changes: dict[bytes, bytes | None] = {}
        """Written by the store directly: key to new value, None to delete. Entries are only ever added or replaced,
        except by `unwrite`."""
        self._order: SortedSet | None = None
        """The changed keys in order, as of the last scan."""

    def unwrite(self, key: bytes) -> None:
        """Forget that the key was ever written, if it was."""
        self.changes.pop(key, None)
        self._order = None

    def get(self, key: bytes) -> bytes | None:
        """The value, the changes included."""
        value = self.changes.get(key, MISSING)
        return self._engine.get(key) if isinstance(value, _Missing) else value

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < end, the changes included, in order; unmoved by later writes."""
        if self._order is None:
            self._order = SortedSet()
        # A dict keeps its keys in the order they were added, so the new ones are at its end.
        self._order.update(islice(reversed(self.changes), len(self.changes) - len(self._order)))
        keys = list(self._order.irange(start, end, inclusive=(True, False)))
        return merge_changes(self._engine.scan(start, end), [(key, self.changes[key]) for key in keys])


def merge_changes(
    stored: Iterator[tuple[bytes, bytes]], changed: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Both in order; a changed entry replaces the stored one of its key."""
    position = 0
    for key, value in stored:
        while position < len(changed) and changed[position][0] < key:
            new_key, new_value = changed[position]
            position += 1
            if new_value is not None:
                yield new_key, new_value
        if position < len(changed) and changed[position][0] == key:
            new_value = changed[position][1]
            position += 1
            if new_value is not None:
                yield key, new_value
        else:
            yield key, value
    for new_key, new_value in changed[position:]:
        if new_value is not None:
            yield new_key, new_value
