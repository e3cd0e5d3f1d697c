"""The one place where a task's store is put together.

the task
  layers      additions of a job or a test: writes that can be undone, checks, ...
  serdes      objects to bytes and back; for a store with a time to live also the expiry of entries
  cache       the bytes of the values used last
  overlay     the running attempt's writes
engine        the content that ended batches left; for all attempts of the task

A store that the job only reads has a view in place of the engine: of data that side inputs, or another program,
filled in. A store with a time to live is an `ExpiringStore` in the place of a SerdeStore; other stores pay nothing for
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Never

from penstock.api.serdes import not_bytes
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.errors import ConfigError
from penstock.graph.store_declarations import read_only
from penstock.graph.stores import StoreSpec, TimeToLive
from penstock.state.engines.engine import Engine
from penstock.state.engines.overlay import MISSING, Overlay
from penstock.state.stores import timed_entries
from penstock.state.stores.columns import ColumnTaskStore
from penstock.state.stores.serdes import SerdeStore
from penstock.state.stores.task_store import L, SideView, StoreLayer, TaskStore, UndoableStore


def build_store(
    spec: StoreSpec,
    engine: Engine,
    cache_entries: int,
    *,
    time_ms: int = 0,
    undoable: bool = False,
    layers: Iterable[type[StoreLayer]] = (),
) -> TaskStore:
    """A store over an engine.

    Args:
        engine: the content that ended batches left. It is only read.
        cache_entries: the number of values kept in memory.
        time_ms: the time of the first batch that uses the store.
        undoable: make the writes of a message undoable.
        layers: more layers, from the inside to the outside. All of them act, in addition to `undoable`.
    """
    store: TaskStore
    if spec.ttl is not None:
        store = ExpiringStore(spec, spec.ttl, engine, cache_entries, time_ms, undoable=undoable)
    else:
        store = ColumnTaskStore(spec, engine) if spec.by_column else SerdeStore(spec, engine, cache_entries)
        if undoable:
            store = UndoableStore(store)
    return with_layers(store, layers)


def with_layers(store: TaskStore, layers: Iterable[type[StoreLayer]]) -> TaskStore:
    """The store in these layers, from the inside to the outside."""
    for layer in layers:
        store = layer(store)
    return store


class SideInputStore(SerdeStore):
    """Reads a view; each attempt may get another one. A cached value is forgotten when its key has changed."""

    def __init__(self, spec: StoreSpec, view: SideView, cache_entries: int) -> None:
        super().__init__(spec, view, cache_entries)
        self._version = view.version
        self._view = view

    def find(self, kind: type[L]) -> L | None:
        return self if isinstance(self, kind) else None

    def show(self, view: SideView) -> None:
        """Read this view from now on. No attempt may be running."""
        if view.version != self._version:
            self._cache.forget(view.changed_since(self._version))
            self._version = view.version
        self._engine = self._view = view
        self._overlay = Overlay(view)
        self._changes = self._overlay.changes

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """The value of each key, empty where there is none; and where there is one."""
        self._gets += len(keys)
        self._engine_gets += len(keys)
        try:
            return self._view.get_many(keys)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def begin(self, time_ms: int = 0) -> Overlay:
        return self._overlay

    def undo(self) -> None: ...

    def put(self, key: Any, value: Any) -> Never:
        raise ConfigError(read_only(self.spec))

    def put_all(self, entries: Mapping[Any, Any]) -> Never:
        raise ConfigError(read_only(self.spec))

    def delete(self, key: Any) -> Never:
        raise ConfigError(read_only(self.spec))


AT_MOST = 10_000
"""The number of expired entries that an attempt deletes, or as many as it wrote, so that deleting keeps up with
writing."""
_ADOPTED_BYTES = 16 << 20
_TO_KEY = len(timed_entries.INDEX) + 8
"""The position of the entry's key in its place in the index."""
_PARTS = 16
"""A place in the index is at most this part of the time to live behind the time at which the entry expires. A read that
is this part later than the last one counts as an access."""


class ExpiringStore(SerdeStore):
    """A store of entries with a header; `timed_entries.py` has their form. Overlay and cache hold them with it.

    Expiry depends on the batch time alone. Expired entries are deleted by `reclaim`, with the other writes of an
    attempt, and are not seen until then.
    """

    def __init__(
        self, spec: StoreSpec, ttl: TimeToLive, engine: Engine, cache_entries: int, time_ms: int, *, undoable: bool
    ) -> None:
        """`time_ms` is the batch time of the first attempt. Raises EngineFailedError."""
        super().__init__(spec, engine, cache_entries)
        self._ttl = ttl
        self._shift = max(0, (ttl.ms // _PARTS).bit_length() - 1)
        self._journal: list[tuple[bytes, Any]] | None = [] if undoable else None
        """(key, its former change in the overlay or MISSING) of each write since the mark, in order."""
        self._reclaimed = timed_entries.INDEX
        """No place in the index of the engine is before this key."""
        self._looked = -1
        """The last step of the index that was reclaimed."""
        self._expired = 0
        self._set_time(time_ms)
        self._adoption: timed_entries.Adoption | None = None
        try:
            self._open()
        except BaseException as error:
            raise self._engine_failed(error) from error

    def _set_time(self, now_ms: int) -> None:
        ttl_ms, shift = self._ttl.ms, self._shift
        expires_ms = now_ms + ttl_ms
        place = timed_entries.index_time(expires_ms, shift)
        self._now_ms = now_ms
        self._alive = self._renew = timed_entries.alive_from(now_ms)
        if self._ttl.since == "access":
            self._renew = max(self._alive, timed_entries.time_bytes(expires_ms - ttl_ms // _PARTS))
        self._header = timed_entries.header(expires_ms, shift)
        self._index = timed_entries.INDEX + timed_entries.time_bytes(place)
        self._first_of_place, self._behind_place = (
            timed_entries.time_bytes(place - (1 << shift) + 1),
            timed_entries.time_bytes(place + 1),
        )
        """An entry with a header between these two, and this shift, has the same place as an entry that is written
        now."""

    def _open(self) -> None:
        """Find out if every entry has a header. If the store has entries from before it had a time to live, begin their
        adoption."""
        meta = self._engine.get(timed_entries.META)
        if meta is not None and timed_entries.has_begun(meta):
            self._adoption = timed_entries.adoption_of(meta)
            return
        if next(self._engine.scan(None, None), None) is not None:
            self._adoption = timed_entries.Adoption(self._now_ms + self._ttl.ms)
            reserved = list(self._engine.scan(timed_entries.RESERVED, timed_entries.RESERVED_END))
            self._changes.update(dict.fromkeys(key for key, _ in reserved))
            for key, data in reserved:
                self._replace(timed_entries.engine_key(key), None, self._header + data)
        self._changes[timed_entries.META] = timed_entries.meta_bytes(self._adoption)

    # Attempts.

    def begin(self, time_ms: int = 0) -> Overlay:
        self._set_time(time_ms)
        if self._journal is not None:
            self._journal.clear()
        return super().begin(time_ms)

    def _cacheable(self) -> dict[bytes, bytes | None]:
        return {
            key: data
            for key, data in self._changes.items()
            if not timed_entries.INDEX <= key < timed_entries.RESERVED_END
        }

    def take_expired(self) -> int:
        found, self._expired = self._expired, 0
        return found

    def mark(self) -> None:
        if self._journal is not None:
            self._journal.clear()

    def undo(self) -> None:
        if self._journal is None:
            super().undo()
        else:
            self._overlay.undo(self._journal)

    # Reads and writes.

    def get(self, key: Any, default: Any = None) -> Any:
        self._gets += 1
        try:
            key_bytes = self._encode_key(key)
        except Exception as error:
            raise self._unwritable_key(key, error) from error
        try:
            place = timed_entries.engine_key(key_bytes) if key_bytes >= timed_entries.RESERVED else key_bytes
            data: Any = self._changes.get(place, MISSING)
        except TypeError:  # it cannot be compared, or cannot be hashed
            raise self._bad_key(key, key_bytes) from None
        if data is MISSING:
            data = self._cache.young.get(place, MISSING)
            if data is MISSING:
                data = self._load(key, place)
        if data is None:
            return default
        if data < self._renew:
            if data < self._alive:
                return default
            renewed = self._header + data[timed_entries.HEADER :]
            self._replace(place, data, renewed)
            data = renewed
        try:
            return self._decode(data[timed_entries.HEADER :])
        except Exception as error:
            raise self._place.unreadable(
                "value", self._value_serde, data[timed_entries.HEADER :], error, key
            ) from error

    def put(self, key: Any, value: Any) -> None:
        try:
            key_bytes = self._encode_key(key)
        except Exception as error:
            raise self._unwritable_key(key, error) from error
        if type(key_bytes) is not bytes:
            raise self._bad_key(key, key_bytes)
        data = None
        if value is not None:
            try:
                data = self._encode(value)
            except Exception as error:
                raise self._place.unwritable("value", self._value_serde, value, error, key) from error
            if type(data) is not bytes:
                raise not_bytes(self._value_serde, data, f"store `{self.name}`, value of key {key!r}")
            data = self._header + data
        place = timed_entries.engine_key(key_bytes) if key_bytes >= timed_entries.RESERVED else key_bytes
        old: Any = self._changes.get(place, MISSING)
        if old is MISSING:
            old = self._cache.young.get(place, MISSING)
            if old is MISSING:
                self._gets += 1
                old = self._load(key, place)
        self._replace(place, old, data)

    def stored(self, key: bytes) -> bytes | None:
        return timed_entries.LiveEntries(self._overlay, self._adoption, self._now_ms).get(key)

    def _load(self, key: Any, key_bytes: bytes) -> Any:
        """An entry that the attempt did not write, with a header."""
        if type(key_bytes) is not bytes:
            raise self._bad_key(key, key_bytes)
        data = self._cache.get(key_bytes)
        if data is MISSING:
            self._engine_gets += 1
            try:
                data = self._engine.get(key_bytes)
                if (
                    data is not None
                    and self._adoption
                    and not timed_entries.is_adopted(self._overlay, self._adoption, key_bytes)
                ):
                    data = self._adoption.header + data
            except BaseException as error:
                raise self._engine_failed(error) from error
            self._cache.put(key_bytes, data)
        return data

    def _replace(self, key: bytes, old: bytes | None, data: bytes | None) -> None:
        """Replace the old entry by the new one, which has this batch's header, or by None; in the index as well."""
        if old is None:
            if data is None:
                return
            self._write(self._index + key, b"")
        elif data is None:
            if old[8] != timed_entries.UNINDEXED:
                self._write(timed_entries.index_key(old, key), None)
        elif not (self._first_of_place <= old < self._behind_place and old[8] == self._shift):
            if old[8] != timed_entries.UNINDEXED:
                self._write(timed_entries.index_key(old, key), None)
            self._write(self._index + key, b"")
        self._write(key, data)
        if self._adoption is not None and key >= self._adoption.cursor:
            self._write(timed_entries.MEMBER + key, None if data is None else b"")

    def _write(self, key: bytes, data: bytes | None) -> None:
        changes = self._changes
        if self._journal is not None:
            self._journal.append((key, changes.get(key, MISSING)))
        changes[key] = data

    def _entries(self, start: bytes | None, end: bytes | None) -> Iterator[timed_entries.Entry]:
        return timed_entries.live_entries(self._overlay, self._adoption, self._alive, start, end)

    # The expired part.

    def reclaim(self) -> None:
        limit = max(AT_MOST, len(self._changes))
        try:
            if self._adoption is not None:
                self._adopt(self._adoption)
            self._delete_expired(limit)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def _delete_expired(self, limit: int) -> None:
        """Delete expired entries, in the order of expiry. The index is read when the batch time has come to the next of
        its times, and then for as long as there is more to delete."""
        step = self._now_ms >> self._shift
        if step == self._looked:
            return
        end = timed_entries.INDEX + timed_entries.alive_from(self._now_ms)
        if self._reclaimed < end:
            # Entries that this attempt put there are due later, so the engine knows everything that is due.
            changes = self._changes
            due = (place for place, _ in self._engine.scan(self._reclaimed, end) if place not in changes)
            for count, place in enumerate(due):
                if count == limit:
                    self._reclaimed = place
                    return
                key = place[_TO_KEY:]
                changes[place] = changes[key] = None
                self._expired += 1
                if self._adoption is not None and key >= self._adoption.cursor:
                    changes[timed_entries.MEMBER + key] = None
            self._reclaimed = end
        self._looked = step

    def _adopt(self, adoption: timed_entries.Adoption) -> None:
        """Give headers to the next entries that have none, and delete them if they are expired."""
        own = timed_entries.header(adoption.expires_ms, self._shift)
        written: dict[bytes, bytes | None] = {}
        count = size = 0
        for key, data in timed_entries.entries_with_header(self._overlay, adoption, adoption.cursor):
            if count == AT_MOST or size > _ADOPTED_BYTES:
                self._adoption = replace(adoption, cursor=key)
                break
            count, size = count + 1, size + len(data)
            if data[8] != timed_entries.UNINDEXED:
                written[timed_entries.MEMBER + key] = None
            elif data < self._alive:
                written[key] = None
                self._expired += 1
            else:
                written[timed_entries.index_key(own, key)] = b""
                written[key] = own + data[timed_entries.HEADER :]
        else:
            self._adoption = None
        self._changes = self._overlay.changes
        written[timed_entries.META] = timed_entries.meta_bytes(self._adoption)
        for key, change in written.items():  # one by one: the overlay was scanned, and watches
            self._changes[key] = change
