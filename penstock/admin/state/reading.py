"""Reads the state of a job as of a retained checkpoint. A running job is not disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.admin.jobs import FoundJob, choose_version, choose_versions
from penstock.admin.state.serdes import store_serdes
from penstock.admin.table import refuse_side_stores
from penstock.api.serdes import Serde
from penstock.base.wording import size_text
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, NotFoundError
from penstock.facts import Facts, FactTable, Shown
from penstock.state.reading.comparison import Difference, StoreVerdict, diff
from penstock.state.reading.comparison import verify as verify_stores
from penstock.state.reading.reader import StateReader, StoreVersion
from penstock.system.registry import open_systems


class Watcher:
    """Reports what is restored. Override its methods.

    Example:
        >>> class Restores(admin.Watcher):
        ...     def restored(self, store, backend, task):
        ...         print(f"task {task} of {store} from {backend}")
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.verify(job, watcher=Restores())
        task 0 of miles from changelog-files
        task 1 of miles from changelog-files
    """

    def read(self, count: int) -> None:
        """Called when more bytes were read.

        Args:
            count: how many bytes.
        """

    def restored(self, store: str, backend: str, task: int) -> None:
        """Called when the store of a task was restored.

        Args:
            store: the store.
            backend: the name of the backend.
            task: the number of the task.
        """


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of a store: its decoded key and value, and the number of the task that holds it."""

    key: Any
    value: Any
    task: int


class OpenStore:
    """A store as of one retained checkpoint, from `open_state`. A task is restored to a scratch folder when it is first
    read."""

    def __init__(self, version: StoreVersion, keys: Serde[Any], values: Serde[Any]) -> None:
        """Read a version with serdes.

        Args:
            version: the store's version, whose keys and values are bytes.
            keys: the serde of the keys.
            values: the serde of the values.
        """
        self.version = version
        self._keys = keys
        self._values = values

    @property
    def checkpoint(self) -> CheckpointRecord:
        """The checkpoint that is read."""
        return self.version.record

    def get(self, key: Any, task: int | None = None) -> list[StoredEntry]:
        """The entries of a key: that of the task that owns the key or, if it has none, those of the other tasks.

        Args:
            key: the key.
            task: the number of the only task to look in.
        """
        return [
            StoredEntry(key, self._values.from_bytes(each.value), each.task)
            for each in self.version.get(self._keys.to_bytes(key), task)
        ]

    def scan(self, start: Any = None, end: Any = None, tasks: Iterable[int] | None = None) -> Iterator[StoredEntry]:
        """The entries with `start` <= key < `end` of all tasks, in the order of the keys' bytes.

        Args:
            start: the first key; None for no bound.
            end: the key behind the last one; None for no bound.
            tasks: the numbers of the tasks to read; None for all.
        """
        first = None if start is None else self._keys.bound_to_bytes(start)
        last = None if end is None else self._keys.bound_to_bytes(end)
        return (
            StoredEntry(self._keys.from_bytes(each.key), self._values.from_bytes(each.value), each.task)
            for each in self.version.scan(first, last, tasks)
        )


@contextmanager
def open_state(
    job: FoundJob, store: str, version: str = "latest", *, backend: str | None = None
) -> Iterator[OpenStore]:
    """Open a store as of a retained checkpoint, to get and scan its entries.

    Args:
        job: the job. Open it with its application if the store's serdes are not Penstock's.
        store: the store.
        version: the id of a checkpoint, the number of its batch, `latest` or `latest-N`.
        backend: the backend to restore from; the first one that can, if None.

    Raises:
        ConfigError: the version is malformed, or a serde is not known.
        NotFoundError: the version names no retained checkpoint, or one without this store.

    Example:
        >>> with admin.open_job("flights") as job, admin.open_state(job, "miles") as miles:
        ...     {entry.key: entry.value for entry in miles.scan()}, miles.get("N1")
        ({'N1': 1200, 'N14': 90, 'N2': 200}, [StoredEntry(key='N1', value=1200, task=0)])
        >>> with admin.open_job("flights") as job, admin.open_state(job, "miles", "1") as miles:
        ...     [entry.value for entry in miles.get("N1")]
        [500]
    """
    with open_version(job, store, version, backend=backend) as opened:
        serdes = store_serdes(opened.record, store, job.application)
        keys = _known("key", serdes.key_name, serdes.key, store)
        values = _known("value", serdes.value_name, serdes.value, store)
        yield OpenStore(opened, keys, values)


@contextmanager
def open_version(
    job: FoundJob, store: str, version: str = "latest", *, backend: str | None = None, watcher: Watcher | None = None
) -> Iterator[StoreVersion]:
    """A store as of a retained checkpoint, over the bytes of its keys and values. Otherwise as `open_state`."""
    watcher = watcher or Watcher()
    record = choose_version(job, version)
    refuse_side_stores(job, record, [store])
    with (
        _reader(job, watcher) as reader,
        StoreVersion(reader, job.log, record, store, backend, watcher.restored) as opened,
    ):
        yield opened


@dataclass(frozen=True, slots=True)
class OpenDiff:
    """Two versions of a store, and a lazy iterator over their differences, in the order of the keys' bytes."""

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
    """Compare two retained versions of a store.

    Args:
        job: the job.
        store: the store.
        before, after: the versions: the id of a checkpoint, the number of its batch, `latest` or `latest-N`.
        backend: the backend to restore from; the first one that can, if None.
        watcher: reports what is restored.

    Raises:
        ConfigError, NotFoundError: a version is malformed, is not retained, or has no such store.

    Example:
        >>> with admin.open_job("flights") as job, admin.open_diff(job, "miles", "1") as compared:
        ...     [(each.key, each.before, each.after) for each in compared.differences]
        [(b'N1', b'500', b'1200')]
    """
    watcher = watcher or Watcher()
    old, new = choose_versions(job, [before, after])
    refuse_side_stores(job, new, [store])
    with (
        _reader(job, watcher) as reader,
        StoreVersion(reader, job.log, old, store, backend, watcher.restored) as first,
        StoreVersion(reader, job.log, new, store, backend, watcher.restored) as second,
    ):
        yield OpenDiff(old, new, diff(first, second))


@dataclass(frozen=True, slots=True)
class StateVerdict(Shown):
    """The result of `verify`: for each store, what each backend restored."""

    checkpoint: str
    stores: tuple[StoreVerdict, ...]

    @property
    def agrees(self) -> bool:
        """True if the backends of every store hold the same."""
        return all(verdict.agrees for verdict in self.stores)

    def as_facts(self) -> Facts:
        rows = []
        for store in self.stores:
            for each in store.backends:
                own = each.digest
                digest = (own.entries, size_text(own.size_bytes), own.sha256[:16]) if own else (None, None, None)
                found = each.problem or ("the same" if store.agrees else "restored")
                rows.append((store.store, each.backend, *digest, found))
        headings = "store, backend, entries>, size>, digest?1, verdict"
        differ = [each.store for each in self.stores if not each.agrees]
        notes = (f"the backends of store `{store}` differ: it is not safe to switch" for store in differ)
        return Facts({}, (FactTable.of(f"State of checkpoint {self.checkpoint}", headings, rows),), tuple(notes))


def verify(
    job: FoundJob, version: str = "latest", stores: Sequence[str] = (), *, watcher: Watcher | None = None
) -> StateVerdict:
    """Restore a retained checkpoint from each backend to a scratch folder, and compare the contents key by key.

    Args:
        job: the job.
        version: the id of a checkpoint, the number of its batch, `latest` or `latest-N`.
        stores: the names of the stores to compare; all, if empty.
        watcher: reports what is restored.

    Raises:
        NotFoundError: the version is not retained, or has no such store.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.verify(job).agrees
        True
    """
    watcher = watcher or Watcher()
    record = choose_version(job, version)
    refuse_side_stores(job, record, stores)
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
