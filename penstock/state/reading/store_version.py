"""One store as of one retained checkpoint: its tasks are restored when they are needed, and merged by key."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.store_layout import StoreLayout
from penstock.errors import ConfigError, NotFoundError, PenstockError
from penstock.state.engines.engine import Content
from penstock.state.reading.reader import StateReader, check_store, seen_entries
from penstock.state.restore import RestoredStore
from penstock.system.partitioner import partition_of


class VersionEntry(NamedTuple):
    """A key, the task that has it, and its value. Ordered by the key's bytes, then by task."""

    key: bytes
    task: int
    value: bytes


class StoreVersion:
    """A store at a checkpoint, as a context manager that closes the restored engines. Entries with a time to live that
    were expired at the checkpoint's batch time are left out.

    It is safe beside a running job, which may let go of the checkpoint at any time: a restored engine is read only
    once the log was seen, afterwards, to retain the checkpoint still. A checkpoint leaves the log's list before
    anything it needs is deleted or compacted, so until then nothing was.
    """

    def __init__(
        self,
        reader: StateReader,
        log: CheckpointLog,
        record: CheckpointRecord,
        store: str,
        backend: str | None = None,
        restored: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:
        """`restored(store, backend, task)` is called after each restore. Raises NotFoundError if the checkpoint has no
        such store, or no marker of it of the named backend."""
        check_store(record, store)
        self.record = record
        self.store = store
        self._reader = reader
        self._log = log
        self._backend = backend
        self._told = restored
        self._stack = ExitStack()
        self._open: dict[int, RestoredStore] = {}
        self._seen: dict[int, Content] = {}
        self._check_backend()

    def __enter__(self) -> StoreVersion:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has_content_of(self, other: StoreVersion, task: int) -> bool:
        """True if both have a marker in common, which stands for one content. If entries expire, the visible content
        also depends on the checkpoint."""
        if not self.markers(task).items() & other.markers(task).items():
            return False
        layouts = [StoreLayout.parse(each.record.stores[each.store]) for each in (self, other)]
        same_time = self.record.batch_time_ms == other.record.batch_time_ms
        return not any(layout.expires for layout in layouts) or (same_time and layouts[0] == layouts[1])

    @property
    def tasks(self) -> range:
        return range(self.record.task_count)

    def backend(self, task: int) -> str:
        """The backend that a task was restored from. The task must have been read."""
        return self._open[task].backend

    def markers(self, task: int) -> dict[str, str]:
        """Backend -> marker of the store in one task. Only the named backend, if one was named."""
        found = {
            backend: stores[self.store]
            for backend, stores in self._reader.markers(self.record, task).items()
            if self.store in stores
        }
        return found if self._backend is None else {name: found[name] for name in found if name == self._backend}

    def owner(self, key: bytes) -> int:
        """The task the key belongs to if the store's keys are those that messages are partitioned by."""
        return partition_of(key, self.record.task_count)

    def restore(self, tasks: Iterable[int]) -> None:
        """Restore these tasks, unless they are restored already, so that they can be read.

        Raises:
            ConfigError: there is no such task.
            NotFoundError: the checkpoint is not retained any more.
            CorruptError, RetryableError: a task cannot be restored, though the checkpoint is retained.
        """
        for task in tasks:
            self._restore(task)
        self._check_retained()

    def get(self, key: bytes, task: int | None = None) -> list[VersionEntry]:
        """The named task's entry for the key; without a task, its owner's, or else those of all others. A store that is
        not kept by the partition key may have the key in several tasks. Raises as `restore`."""
        if task is not None:
            return self._lookup(key, [task])
        owner = self.owner(key)
        return self._lookup(key, [owner]) or self._lookup(key, [each for each in self.tasks if each != owner])

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, tasks: Iterable[int] | None = None
    ) -> Iterator[VersionEntry]:
        """The entries with start <= key < end (None: unbounded) of these tasks (None: all), in order. Everything is
        restored before this returns. Raises as `restore`."""
        wanted = list(self.tasks if tasks is None else tasks)
        self.restore(wanted)
        return heapq.merge(*(self._entries(task, start, end) for task in wanted))

    def _lookup(self, key: bytes, tasks: list[int]) -> list[VersionEntry]:
        self.restore(tasks)
        values = ((task, self._seen[task].get(key)) for task in tasks)
        return [VersionEntry(key, task, value) for task, value in values if value is not None]

    def _entries(self, task: int, start: bytes | None, end: bytes | None) -> Iterator[VersionEntry]:
        return (VersionEntry(key, task, value) for key, value in self._seen[task].scan(start, end))

    def _restore(self, task: int) -> None:
        if task in self._open:
            return
        if task not in self.tasks:
            raise ConfigError(f"there is no task {task}: checkpoint {self.record.id} has 0 to {self.tasks.stop - 1}")
        try:
            opened = self._reader.restored(self.record, self.store, task, self._backend)
            self._open[task] = self._stack.enter_context(opened)
        except PenstockError:
            self._check_retained()  # if it is not, that is the reason
            raise
        self._seen[task] = seen_entries(self.record, self.store, self._open[task].engine)
        self._told(self.store, self._open[task].backend, task)

    def _check_retained(self) -> None:
        view = self._log.read("report")
        if all(kept.id != self.record.id for kept in view.restorable):
            now = ", ".join(str(kept.id) for kept in view.restorable) or "none"
            raise NotFoundError(
                f"checkpoint {self.record.id} was retained when it was chosen and no longer is: it left the list while "
                f"it was read. Retained now: {now}"
            )

    def _check_backend(self) -> None:
        if self._backend is None or any(self.markers(task) for task in self.tasks):
            return
        own = (self._reader.markers(self.record, task) for task in self.tasks)
        names = dict.fromkeys(name for each in own for name, stores in each.items() if self.store in stores)
        raise NotFoundError(
            f"checkpoint {self.record.id} has no marker of store `{self.store}` from `{self._backend}`; it has from: "
            f"{', '.join(names) or 'none'}"
        )
