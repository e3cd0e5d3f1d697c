"""The one place where a task's store is put together.

the task
  layers      additions of a job or a test: writes that can be undone, checks, ...
  serdes      objects to bytes and back; for a store with a time to live also the expiry of entries
  cache       the bytes of the values used last
  overlay     the running attempt's writes
engine        the content that ended batches left; for all attempts of the task

A store that the job only reads has a view in place of the engine: of data that side inputs, or another program,
filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Never

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.errors import ConfigError
from penstock.graph.store_declarations import read_only
from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Engine
from penstock.state.engines.overlay import Overlay
from penstock.state.stores.columns import ColumnTaskStore
from penstock.state.stores.expiring import ExpiringStore
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
