"""Counts a task's uses of a store: once for each batch that has ended, never for each message."""

from __future__ import annotations

from functools import partial

from penstock.metrics.registry import MetricsRegistry
from penstock.state.stores.task_store import TaskStore


class StoreMeter:
    """The counters of one store of a task."""

    def __init__(self, metrics: MetricsRegistry, store: str) -> None:
        group = f"store.{store}"
        self._new_expired = partial(metrics.new_counter, group, "expired")
        self._gets = metrics.new_counter(group, "gets")
        self._cache_hits = metrics.new_counter(group, "cache-hits")
        self._scans = metrics.new_counter(group, "scans")
        self._puts = metrics.new_counter(group, "puts")
        self._deletes = metrics.new_counter(group, "deletes")
        self._bytes_written = metrics.new_counter(group, "bytes-written")

    def read(self, store: TaskStore) -> None:
        reads = store.take_reads()
        self._gets.inc(reads.gets)
        self._cache_hits.inc(reads.gets - reads.engine_gets)
        self._scans.inc(reads.scans)
        if store.spec.ttl is not None:
            self._new_expired().inc(store.take_expired())

    def wrote(self, keys: int, deletes: int, size_bytes: int) -> None:
        """Add the writes of an applied attempt. `keys` includes the deletes; several writes of a key within the batch
        count once."""
        self._puts.inc(keys - deletes)
        self._deletes.inc(deletes)
        self._bytes_written.inc(size_bytes)
