"""Resources of a job's backends: threads, and roots, each opened once.

A container has one pool for background work and one for transfers, whatever the number of tasks and stores. No thread
of a pool waits for work of the same pool. Commits and restores, which have pools of their own, wait for both;
background work waits for transfers; a transfer waits for nobody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TypeVar

from penstock.base.wording import listed
from penstock.checkpoint.forks import homes_of, root_of
from penstock.config.model import JobConfig
from penstock.errors import NotFoundError
from penstock.job.identity import canonical_root, check_companion, settle_companion
from penstock.job.paths import JobPaths
from penstock.objects.forwarding import ForwardingStore
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore

T = TypeVar("T")

_LEAST_MAINTENANCE, _MOST_MAINTENANCE = 2, 8
_TRANSFERS_PER_TASK, _MOST_TRANSFERS = 8, 32


@dataclass(frozen=True, slots=True)
class BackendPools:
    """The pools for a backend's background work and transfers. The code that made them shuts them down."""

    maintenance: Executor
    """For bases, snapshots, compaction: long work beside the commits. It may wait for transfers."""
    transfers: Executor
    """For single reads, writes and hashes of objects and files. They wait for no other work."""

    @classmethod
    def for_tasks(cls, tasks: int, name: str = "backend") -> BackendPools:
        """Pools sized for a number of tasks, at most 8 and 32 threads, started when first needed."""
        maintenance = min(max(_LEAST_MAINTENANCE, tasks), _MOST_MAINTENANCE)
        transfers = min(_TRANSFERS_PER_TASK * max(1, tasks), _MOST_TRANSFERS)
        return cls(
            ThreadPoolExecutor(maintenance, thread_name_prefix=f"maintenance-{name}"),
            ThreadPoolExecutor(transfers, thread_name_prefix=f"transfer-{name}"),
        )

    def close(self) -> None:
        """Wait for running work; cancel the rest."""
        self.maintenance.shutdown(wait=True, cancel_futures=True)
        self.transfers.shutdown(wait=True, cancel_futures=True)


def process_pools() -> BackendPools:
    """The pools of a process that reads or imports state and is no container. They end with the process; one that was
    forked from it, and has none of their threads, gets others."""
    return _pools_of(os.getpid())


@cache
def _pools_of(process: int) -> BackendPools:
    return BackendPools.for_tasks(1, "process")


class _WithHomes(ForwardingStore):
    """A root in which objects of the state that a fork does not have itself are those of its parents.

    Names of objects have the epoch, and no two of these jobs have an epoch in common, so a name that is in one folder
    is in no other, unless it is a copy. A fork deletes and lists what is its own.
    """

    def __init__(self, inner: ObjectStore, own: JobPaths, homes: Sequence[tuple[JobPaths, ObjectStore]]) -> None:
        super().__init__(inner)
        self._own = own
        self._homes = homes

    def get(self, key: str) -> bytes:
        return self._first(lambda store, key: store.get(key), key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._first(lambda store, key: store.get_with_tag(key), key)

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        def begun(store: ObjectStore, key: str) -> Iterator[bytes | memoryview]:
            pieces = iter(store.pieces(key))
            return chain([first], pieces) if (first := next(pieces, None)) is not None else iter(())

        return self._first(begun, key)

    def _first(self, read: Callable[[ObjectStore, str], T], key: str) -> T:
        try:
            return read(self._inner, key)
        except NotFoundError as missing:
            folder = f"{self._own.state}/"
            if not key.startswith(folder):
                raise
            for home, store in self._homes:
                with suppress(NotFoundError):
                    return read(store, f"{home.state}/{key.removeprefix(folder)}")
            homes = listed([f"`{home.root}`" for home, _ in self._homes])
            raise NotFoundError(f"{missing}, nor in the folder of {homes}, which this job was forked from") from None


class BackendRoots:
    """The object store of every backend, each root opened once. Thread-safe.

    In a fork, the stores show the objects of its parents as its own (`checkpoint/forks.py`).

    A root other than the job's carries the job's uid, as the job root does. Two jobs of one name, or a job and a copy
    of it that became another job, therefore never delete each other's state.
    """

    def __init__(self, config: JobConfig, objects: ObjectStore) -> None:
        """`objects`: the job root, which the caller closes."""
        self._config = config
        self._job_root = canonical_root(config.job.root)
        self._objects = objects
        self._opened: dict[str, ObjectStore] = {}
        self._paths = JobPaths(config.job.name, config.job.id)
        self._homes: Sequence[tuple[JobPaths, Mapping[str, str]]] | None = None
        self._lock = threading.Lock()

    def of(self, backend: str) -> ObjectStore:
        """Raises ConfigError if the environment lacks a setting that the root needs."""
        if self._homes is None:
            self._homes = tuple(homes_of(self._objects, self._paths, self._open))
        found = self._root(backend)
        homes = [(home, self._open(root_of(roots, backend)) if roots else found) for home, roots in self._homes]
        return _WithHomes(found, self._paths, homes) if homes else found

    def separate(self) -> Iterator[tuple[str, ObjectStore]]:
        """Every configured root (canonical URL, store) that is not the job's."""
        urls = {canonical_root(self._config.backend_root(name)): None for name in self._config.rooted_backends}
        yield from ((url, self._open(url)) for url in urls if url != self._job_root)

    def settle(self, backends: Iterable[str], paths: JobPaths, uid: str) -> None:
        """Bind the roots of these backends to the job. Raises IncompatibleError if one is another job's."""
        for backend in backends:
            if (root := self._root(backend)) is not self._objects:
                settle_companion(root, paths, uid, self._names(backend))

    def check(self, backend: str, paths: JobPaths, uid: str) -> None:
        """Raise IncompatibleError if the backend's root is bound to another job. Writes nothing."""
        if (root := self._root(backend)) is not self._objects:
            check_companion(root, paths, uid, self._names(backend))

    def close(self) -> None:
        with self._lock:
            for store in self._opened.values():
                store.close()
            self._opened.clear()

    def _root(self, backend: str) -> ObjectStore:
        return self._open(self._config.backend_root(backend))

    def _names(self, backend: str) -> str:
        return f"state.backends.{backend}.root={self._config.backend_root(backend)}"

    def _open(self, url: str) -> ObjectStore:
        canonical = canonical_root(url)
        if canonical == self._job_root:
            return self._objects
        with self._lock:
            if canonical not in self._opened:
                self._opened[canonical] = open_root(url, self._config.job.root_keys)
            return self._opened[canonical]
