"""A state backend for benchmarks: changelog files on an object store as far away and as narrow as the environment says.

`stores.backup.factories: benchmarks.state.slow_backend:SlowChangelogFiles`. The environment of the driver reaches
Spark's workers and the containers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.objects.store import ObjectStore
from penstock.state.backends.base import AdminContext, BackendContext
from penstock.state.backends.changelog_files.backup import ChangelogFilesBackup
from penstock.state.backends.changelog_files.factory import (
    ChangelogFilesAdmin,
    ChangelogFilesFactory,
    ChangelogFilesRestore,
)
from penstock.testing.faulty_store import ForwardingStore

NAME = "benchmarks.state.slow_backend:SlowChangelogFiles"
_LATENCY = "PENSTOCK_BENCH_LATENCY_MS"
_BANDWIDTH = "PENSTOCK_BENCH_BYTES_PER_SECOND"


def environment(latency_ms: float, bytes_per_second: float) -> Mapping[str, str]:
    """The variables that make the store so slow."""
    return {_LATENCY: str(latency_ms), _BANDWIDTH: str(bytes_per_second)}


class Line:
    """The one way from a process to the store: calls wait side by side, their bytes one after the other."""

    def __init__(self) -> None:
        self._latency_s = float(os.environ.get(_LATENCY, "0")) / 1000
        self._bytes_per_second = float(os.environ.get(_BANDWIDTH, "inf"))
        self._lock = threading.Lock()
        self._free_at = 0.0

    def call(self, kind: str, size: int) -> None:
        """Wait as long as a call takes that moves so many bytes."""
        wait_until = time.monotonic() + self._latency_s
        if size:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + size / self._bytes_per_second
                wait_until = self._free_at + self._latency_s
        time.sleep(max(0.0, wait_until - time.monotonic()))


def _watched(name: str, kind: str) -> Any:
    """A call to the store inside; `watch` is told before."""

    def call(self: WatchedStore, key: str, *given: Any, **options: Any) -> Any:
        self.watch(kind, len(given[0]) if kind == "put" else 0)
        return getattr(self._inner, name)(key, *given, **options)

    return call


class WatchedStore(ForwardingStore):
    """Tells `watch` the kind of each call and its bytes: before a write, and after a read, also one that fails."""

    def __init__(self, inner: ObjectStore, watch: Callable[[str, int], None]) -> None:
        super().__init__(inner)
        self.watch = watch

    put_if_absent, put_if_match = _watched("put_if_absent", "put"), _watched("put_if_match", "put")
    list, sizes = _watched("list", "list"), _watched("sizes", "list")
    delete, delete_durably = _watched("delete", "delete"), _watched("delete_durably", "delete")

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        yield self.get(key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        found = b"", ""
        try:
            found = super().get_with_tag(key)
        finally:  # a read of what is not there is one as well
            self.watch("get", len(found[0]))
        return found


_line = Line()
"""The line that all tasks of this process share."""
C = TypeVar("C", AdminContext, BackendContext)


def _slow(context: C) -> C:
    return replace(context, objects=WatchedStore(context.objects, _line.call))


class SlowChangelogFiles(ChangelogFilesFactory):
    """Changelog files over the line."""

    @property
    def name(self) -> str:
        return NAME

    def backup_manager(self, context: BackendContext) -> ChangelogFilesBackup:
        return super().backup_manager(_slow(context))

    def restore_manager(self, context: BackendContext) -> ChangelogFilesRestore:
        return super().restore_manager(_slow(context))

    def admin(self, context: AdminContext) -> ChangelogFilesAdmin:
        return super().admin(_slow(context))
