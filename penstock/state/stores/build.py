"""The one place where a task's store is put together.

the task
  layers      additions of a job or a test: writes that can be undone, checks, ...
  serdes      objects to bytes and back; for a store with a time to live also the expiry of entries
  cache       the bytes of the values used last
  overlay     the running attempt's writes
engine        the content that ended batches left; for all attempts of the task
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Engine
from penstock.state.stores.columns import ColumnTaskStore
from penstock.state.stores.expiring import ExpiringStore
from penstock.state.stores.serdes import SerdeStore
from penstock.state.stores.task_store import StoreLayer, TaskStore
from penstock.state.stores.undoable import UndoableStore


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
