"""The store a task uses: serdes above a cache of objects above the batch's overlay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.api.store import KeyValueStore, StoreSpec
from penstock.state.cache import ObjectCache
from penstock.state.engine import Engine
from penstock.state.overlay import MISSING, Overlay
from penstock.state.scans import range_bounds


class TaskStore(KeyValueStore):
    """One task's instance of a store, for as long as the stage instance it belongs to lives.

    Each attempt begins with `begin`, which gives it an overlay of its own.
    """

    def __init__(self, spec: StoreSpec, engine: Engine, cache_entries: int) -> None:
        self.name = spec.name
        self._engine = engine
        self._cache = ObjectCache(cache_entries)
        self._overlay = Overlay(engine)
        self._fresh = True
        self._key_serde = spec.key_serde
        self._encode_key = spec.key_serde.to_bytes
        self._decode_key = spec.key_serde.from_bytes
        self._encode = spec.value_serde.to_bytes
        self._decode = spec.value_serde.from_bytes

    def begin(self) -> Overlay:
        """Start an attempt: from now on writes go to the overlay that is returned.

        What a task's `init` wrote belongs to the first attempt.
        """
        if not self._fresh:
            self._overlay = Overlay(self._engine)
        self._fresh = False
        return self._overlay

    def check(self) -> None:
        """Called when an attempt's input is processed; a store that watches its use raises here."""

    def get(self, key: Any) -> Any:
        key_bytes = self._encode_key(key)
        value = self._cache.young.get(key_bytes, MISSING)
        return self._load(key_bytes) if value is MISSING else value

    def _load(self, key_bytes: bytes) -> Any:
        value = self._cache.get(key_bytes)
        if value is not MISSING:
            return value
        data = self._overlay.get(key_bytes)
        value = None if data is None else self._decode(data)
        self._cache.put(key_bytes, value)
        return value

    def put(self, key: Any, value: Any) -> None:
        key_bytes = self._encode_key(key)
        self._overlay.changes[key_bytes] = None if value is None else self._encode(value)
        cache = self._cache
        if len(cache.young) < cache.spare:  # the usual case of `cache.put`, without the call
            cache.young[key_bytes] = value
        else:
            cache.put(key_bytes, value)

    def delete(self, key: Any) -> None:
        key_bytes = self._encode_key(key)
        self._overlay.changes[key_bytes] = None
        self._cache.put(key_bytes, None)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        return self._scan(*range_bounds(self.name, self._key_serde, from_key, to_key))

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._scan(None, None)

    def snapshot(self, from_key: Any, to_key: Any) -> list[tuple[Any, Any]]:
        return list(self.range(from_key, to_key))

    def _scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[Any, Any]]:
        for key, data in self._overlay.scan(start, end):
            yield self._decode_key(key), self._decode(data)


class UndoableStore(TaskStore):
    """A store whose writes since the last `mark` can be taken back, for jobs with a dead-letter stream.

    Taking back also forgets every decoded value the message got hold of: it may have been changed in place.
    """

    def __init__(self, spec: StoreSpec, engine: Engine, cache_entries: int) -> None:
        super().__init__(spec, engine, cache_entries)
        self._journal: list[tuple[bytes, Any]] = []
        self._touched: set[bytes] = set()

    def mark(self) -> None:
        """A message begins."""
        self._journal.clear()
        self._touched.clear()

    def undo(self) -> None:
        """Put everything back as it was at the mark."""
        for key, before in reversed(self._journal):
            if before is MISSING:
                self._overlay.unwrite(key)
            else:
                self._overlay.changes[key] = before
        for key in self._touched:
            self._cache.forget(key)
        self.mark()

    def get(self, key: Any) -> Any:
        self._touched.add(self._encode_key(key))
        return super().get(key)

    def put(self, key: Any, value: Any) -> None:
        self._note(key)
        super().put(key, value)

    def delete(self, key: Any) -> None:
        self._note(key)
        super().delete(key)

    def _note(self, key: Any) -> None:
        key_bytes = self._encode_key(key)
        self._touched.add(key_bytes)
        self._journal.append((key_bytes, self._overlay.changes.get(key_bytes, MISSING)))
