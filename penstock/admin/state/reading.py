"""Reading the state of a job as of a retained version. The job need not run, and is not disturbed if it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.admin.jobs import FoundJob
from penstock.admin.state.serdes import store_serdes
from penstock.admin.state.version import choose_version, choose_versions
from penstock.api.serdes import Serde
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, NotFoundError
from penstock.state.reading.diff import Difference, diff
from penstock.state.reading.reader import StateReader
from penstock.state.reading.store_version import StoreVersion
from penstock.state.reading.verify import StoreVerdict
from penstock.state.reading.verify import verify as verify_stores
from penstock.system.registry import open_systems


class Watcher:
    """Sees what is restored. Every method may be overridden."""

    def read(self, count: int) -> None:
        """So many bytes more were read."""

    def restored(self, store: str, backend: str, task: int) -> None:
        """A task of a store was restored from a backend."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A key and its value, as the store's serdes have them, and the task that holds it."""

    key: Any
    value: Any
    task: int


class OpenStore:
    """One store as of one retained checkpoint. A task is restored to scratch when it is first read.

    Args:
        version: the same over bytes.
        keys, values: the serdes.
    """

    def __init__(self, version: StoreVersion, keys: Serde[Any], values: Serde[Any]) -> None:
        self.version = version
        self._keys = keys
        self._values = values

    @property
    def checkpoint(self) -> CheckpointRecord:
        """The checkpoint that is read."""
        return self.version.record

    def get(self, key: Any, task: int | None = None) -> list[StoredEntry]:
        """What is under a key: in the task that owns it or, if it has none, in the others; or in the named task."""
        return [
            StoredEntry(key, self._values.from_bytes(each.value), each.task)
            for each in self.version.get(self._keys.to_bytes(key), task)
        ]

    def scan(self, start: Any = None, end: Any = None, tasks: Iterable[int] | None = None) -> Iterator[StoredEntry]:
        """The entries with start <= key < end (None: unbounded), in the order of the keys' bytes, over all tasks."""
        first = None if start is None else self._keys.bound_to_bytes(start)
        last = None if end is None else self._keys.bound_to_bytes(end)
        return (
            StoredEntry(self._keys.from_bytes(each.key), self._values.from_bytes(each.value), each.task)
            for each in self.version.scan(first, last, tasks)
        )


@contextmanager
def open_state(
    job: FoundJob,
    store: str,
    version: str = "latest",
    *,
    backend: str | None = None,
) -> Iterator[OpenStore]:
    """Open a store as of a retained version, to get and scan its entries.

    Args:
        job: the job; opened with its application, if the store's serdes are not Penstock's.
        store: the store.
        version: a checkpoint's id, the number of its batch, `latest` or `latest-N`.
        backend: restore from this one; from the first that can, if None.

    Raises:
        ConfigError: the version is no name of one, or a serde is not known.
        NotFoundError: no retained checkpoint has this name, or it has no such store.
    """
    with open_version(job, store, version, backend=backend) as opened:
        serdes = store_serdes(opened.record, store, job.application)
        keys = _known("key", serdes.key_name, serdes.key, store)
        values = _known("value", serdes.value_name, serdes.value, store)
        yield OpenStore(opened, keys, values)


@contextmanager
def open_version(
    job: FoundJob,
    store: str,
    version: str = "latest",
    *,
    backend: str | None = None,
    watcher: Watcher | None = None,
) -> Iterator[StoreVersion]:
    """A store as of a retained version, over the bytes of its keys and values. As `open_state`; `watcher` sees what
    is restored."""
    watcher = watcher or Watcher()
    log = CheckpointLog(job.objects, job.paths)
    record = choose_version(log, job, version)
    with (
        _reader(job, watcher) as reader,
        StoreVersion(reader, log, record, store, backend, watcher.restored) as opened,
    ):
        yield opened


@dataclass(frozen=True, slots=True)
class OpenDiff:
    """Two versions of a store, and an iterator over what differs, in the order of the keys' bytes. It reads lazily."""

    before: CheckpointRecord
    after: CheckpointRecord
    differences: Iterator[Difference]


@contextmanager
def open_diff(
    job: FoundJob,
    store: str,
    before: str,
    after: str = "latest",
    *,
    backend: str | None = None,
    watcher: Watcher | None = None,
) -> Iterator[OpenDiff]:
    """What differs between two retained versions of a store.

    Args:
        job: the job.
        store: the store.
        before, after: the versions: a checkpoint's id, the number of its batch, `latest` or `latest-N`.
        backend: restore from this one; from the first that can, if None.
        watcher: sees what is restored.

    Raises:
        ConfigError, NotFoundError: a version is not one, or is not retained, or has no such store.
    """
    watcher = watcher or Watcher()
    log = CheckpointLog(job.objects, job.paths)
    old, new = choose_versions(log, job, [before, after])
    with (
        _reader(job, watcher) as reader,
        StoreVersion(reader, log, old, store, backend, watcher.restored) as first,
        StoreVersion(reader, log, new, store, backend, watcher.restored) as second,
    ):
        yield OpenDiff(old, new, diff(first, second))


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """What restoring every backend of a checkpoint to scratch has shown."""

    checkpoint: str
    stores: tuple[StoreVerdict, ...]

    @property
    def agrees(self) -> bool:
        """Whether the backends of every store hold the same."""
        return all(verdict.agrees for verdict in self.stores)


def verify(
    job: FoundJob, version: str = "latest", stores: Sequence[str] = (), *, watcher: Watcher | None = None
) -> StateVerdict:
    """Restore each backend of a retained version to scratch and compare what they hold, key by key.

    Args:
        job: the job.
        version: a checkpoint's id, the number of its batch, `latest` or `latest-N`.
        stores: these only; all, if there are none.
        watcher: sees what is restored.

    Raises:
        NotFoundError: the version is not retained, or has no such store.
    """
    watcher = watcher or Watcher()
    record = choose_version(CheckpointLog(job.objects, job.paths), job, version)
    unknown = [name for name in stores if name not in record.stores]
    if unknown:
        known = ", ".join(record.stores) or "none"
        raise NotFoundError(f"checkpoint {record.id} has no store `{unknown[0]}`; it has: {known}")
    with _reader(job, watcher) as reader:
        verdicts = verify_stores(reader, record, stores or sorted(record.stores), watcher.restored)
    return StateVerdict(str(record.id), tuple(verdicts))


@contextmanager
def _reader(job: FoundJob, watcher: Watcher) -> Iterator[StateReader]:
    systems = open_systems(job.config)
    with StateReader(job.config, job.paths, job.objects, systems, watcher.read) as reader:
        yield reader


def _known(what: str, name: str, serde: Serde[Any] | None, store: str) -> Serde[Any]:
    if serde is None:
        raise ConfigError(
            f"the {what} serde `{name}` of store `{store}` is not one of Penstock's: open the job with its application"
        )
    return serde
