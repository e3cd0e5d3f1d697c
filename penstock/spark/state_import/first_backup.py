"""The backups of a job's first checkpoint, made where the entries are."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.state_import.load import StoreLoad
from penstock.state.outside_backup import OutsideBackup


@dataclass(frozen=True, slots=True)
class FirstBackup:
    """The inputs of a job's first checkpoint. Picklable."""

    backup: OutsideBackup
    tasks: int
    stores: tuple[str, ...]

    def run(self, task: int, store: str, entries: Iterable[tuple[bytes, bytes]], scratch: Path) -> dict[str, str]:
        """Back up a store of a task. Returns its marker in each backend.

        Args:
            task: the task.
            store: the store.
            entries: all that the store holds, as its engine has them.
            scratch: a folder of this call alone.

        Raises:
            IncompatibleError: there are two entries of one key.
            PenstockError: a backend failed. No checkpoint names the objects that it wrote.
        """
        with closing(StoreLoad(self.backup.config.store(store), 1, scratch)) as load:
            for key, value in entries:
                load.put(0, key, value)
            (copy,) = load.copies()
            return self.backup.upload(task, store, copy)
