"""The one place where a task's store is put together.

the task
  layers      what a job or a test adds: writes that can be undone, checks, ...
  serdes      objects to bytes and back; of a store with a time to live also when an entry expires
  cache       the bytes of the values used last
  overlay     the running attempt's writes
engine        what ended batches left; for all attempts of the task
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.state.store import StoreSpec
from penstock.state.engines.engine import Engine
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
        spec: its name, its serdes, and the time to live of its entries.
        engine: what ended batches left. It is only read.
        cache_entries: how many values are kept in memory.
        time_ms: the time of the first batch that uses it.
        undoable: whether the writes of a message can be undone.
        layers: more layers, from the inside to the outside. All of them act, in addition to `undoable`.
    """
    store: TaskStore
    if spec.ttl is not None:
        store = ExpiringStore(spec, spec.ttl, engine, cache_entries, time_ms, undoable=undoable)
    else:
        store = SerdeStore(spec, engine, cache_entries)
        if undoable:
            store = UndoableStore(store)
    return with_layers(store, layers)


def with_layers(store: TaskStore, layers: Iterable[type[StoreLayer]]) -> TaskStore:
    """The store in these layers, from the inside to the outside."""
    for layer in layers:
        store = layer(store)
    return store
