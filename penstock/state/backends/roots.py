"""The roots of a job's backends: the job root, or a root of its own for each backend that is given one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from penstock.config.model import JobConfig
from penstock.job.identity import canonical_root, check_companion, settle_companion
from penstock.job.paths import JobPaths
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore


class BackendRoots:
    """The object store of every backend, each root opened once. Thread-safe.

    A root other than the job's carries the job's uid, as the job root does. Two jobs of one name, or a job and a copy
    of it that became another job, therefore never delete each other's state.
    """

    def __init__(self, config: JobConfig, objects: ObjectStore) -> None:
        """`objects`: the job root, which the caller closes."""
        self._config = config
        self._job_root = canonical_root(config.job.root)
        self._objects = objects
        self._opened: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    def of(self, backend: str) -> ObjectStore:
        """Raises ConfigError if the environment lacks a setting that the root needs."""
        return self._open(self._config.backend_root(backend))

    def separate(self) -> Iterator[tuple[str, ObjectStore]]:
        """Every configured root (canonical URL, store) that is not the job's."""
        urls = {canonical_root(self._config.backend_root(name)): None for name in self._config.rooted_backends}
        yield from ((url, self._open(url)) for url in urls if url != self._job_root)

    def settle(self, backends: Iterable[str], paths: JobPaths, uid: str) -> None:
        """Bind the roots of these backends to the job. Raises IncompatibleError if one is another job's."""
        for backend in backends:
            if self.of(backend) is not self._objects:
                settle_companion(self.of(backend), paths, uid, self._names(backend))

    def check(self, backend: str, paths: JobPaths, uid: str) -> None:
        """Raise IncompatibleError if the backend's root is bound to another job. Writes nothing."""
        if self.of(backend) is not self._objects:
            check_companion(self.of(backend), paths, uid, self._names(backend))

    def close(self) -> None:
        with self._lock:
            for store in self._opened.values():
                store.close()
            self._opened.clear()

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
