"""Compares the backends of a checkpoint: each is restored to scratch and digested, key by key.

Entries with a time to live are compared as they are stored, and with the index of their times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.api.time.timers import TIMERS
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.store_layout import StoreLayout
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.state.engines.engine import Engine
from penstock.state.reading.expiry_check import expiry_problem
from penstock.state.reading.reader import StateReader
from penstock.state.stores.timer_entries import timer_problem


@dataclass(frozen=True, slots=True)
class Digest:
    """The content of one store in one backend: entries, bytes of keys and values, and a SHA-256 over all of them."""

    entries: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackendVerdict:
    """The result for one backend of one store. `digest` is None if it could not be restored, or has no marker in every
    task."""

    backend: str
    digest: Digest | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """The results for all backends of one store."""

    store: str
    backends: tuple[BackendVerdict, ...]

    @property
    def agrees(self) -> bool:
        digests = {verdict.digest for verdict in self.backends}
        return len(digests) == 1 and None not in digests


def verify(
    reader: StateReader, record: CheckpointRecord, stores: Iterable[str], looked_at: Callable[[str, str, int], None]
) -> list[StoreVerdict]:
    """Restore every store of the checkpoint from each backend that has a marker of it, and compare.

    `looked_at(store, backend, task)` is called after each restore.

    Raises:
        RetryableError, ConfigError: a backend could not be read for now, which proves nothing about its content.
    """
    verdicts = []
    for store in stores:
        found = {
            name: None for task in record.tasks for name, own in reader.markers(record, task).items() if store in own
        }
        verdicts.append(
            StoreVerdict(store, tuple(_look(reader, record, store, backend, looked_at) for backend in found))
        )
    return verdicts


def _look(
    reader: StateReader,
    record: CheckpointRecord,
    store: str,
    backend: str,
    looked_at: Callable[[str, str, int], None],
) -> BackendVerdict:
    missing = [task for task in record.tasks if store not in reader.markers(record, task).get(backend, {})]
    if missing:
        tasks = ", ".join(map(str, missing))
        return BackendVerdict(backend, None, f"no marker yet in task {tasks}: its base is not complete")
    total, entries, size = hashlib.sha256(), 0, 0
    expires = StoreLayout.parse(record.stores[store]).expires
    for task in sorted(record.tasks):
        try:
            with reader.open(record, store, task, backend) as engine:
                own = digest(engine)
                problem = expiry_problem(engine) if expires else None
                if store.endswith(TIMERS):
                    problem = timer_problem(engine)
        except (CorruptError, NotFoundError, IncompatibleError) as error:
            return BackendVerdict(backend, None, str(error))
        if problem is not None:
            return BackendVerdict(backend, None, f"store `{store}` of task {task}: {problem}")
        entries, size = entries + own.entries, size + own.size_bytes
        total.update(f"{task}:{own.sha256}\n".encode())
        looked_at(store, backend, task)
    return BackendVerdict(backend, Digest(entries, size, total.hexdigest()))


def digest(engine: Engine) -> Digest:
    """The digest of an engine's whole content. Equal only for equal content."""
    total, entries, size = hashlib.sha256(), 0, 0
    for key, value in engine.scan(None, None):
        # The lengths keep two entries from looking like one.
        total.update(b"%d %d " % (len(key), len(value)))
        total.update(key)
        total.update(value)
        entries += 1
        size += len(key) + len(value)
    return Digest(entries, size, total.hexdigest())
