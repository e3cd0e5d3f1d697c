"""A job with committed state, made without Spark: real backends, a real log, and plain dicts that say what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.task_versions import build_versions, changelog_identities
from penstock.objects.file import FileObjectStore
from penstock.state.backends.registry import backend_factory
from penstock.system.local import LocalSystem
from penstock.testing.state_backend_harness import STORES, BackendHarness, TaskBackup
from tests.support.stores.checkpoints import checkpoint

Changes: TypeAlias = Mapping[bytes, bytes | None]
Entries: TypeAlias = dict[tuple[bytes, int], bytes]
"""(key, task) -> value."""

JOB = "contract-1"
LAYOUTS = {"first": "task string json", "second": "task bytes flights.town"}


class StateJob:
    """The job `contract-1` with the stores `first` and `second`; `home` is its PENSTOCK_HOME."""

    def __init__(
        self,
        home: Path,
        *,
        tasks: int = 3,
        backends: Sequence[str] = ("changelog-files",),
        layouts: Mapping[str, str] = LAYOUTS,
        versions: Sequence[int] = (2,),
    ) -> None:
        self.home = home
        self.objects = FileObjectStore(home / "jobs")
        self.content: dict[str, dict[str, Entries]] = {}
        """Checkpoint -> store -> what it must hold."""
        self._layouts = dict(layouts)
        self._versions = tuple(versions)
        systems = {"local": LocalSystem("local", str(home / "streams"))}
        self.harnesses = {
            name: BackendHarness(backend_factory(name), self.objects, home / "engines" / name, systems=systems)
            for name in backends
        }
        self.paths = next(iter(self.harnesses.values())).paths
        self.log = CheckpointLog(self.objects, self.paths)
        self.claim = self.log.claim("run")
        self._now: dict[str, Entries] = {store: {} for store in STORES}
        self._number = 0
        self._parent: CheckpointId | None = None
        self._backups: dict[int, dict[str, TaskBackup]] = {
            task: {name: harness.backup(self.claim.epoch, task=task) for name, harness in self.harnesses.items()}
            for task in range(tasks)
        }

    def commit(
        self,
        changes: Mapping[int, Changes],
        *,
        store: str = "first",
        batch: int | None = None,
        retained: Sequence[CheckpointRecord] | None = None,
    ) -> CheckpointRecord:
        """Change a store, task by task, and commit every task in every backend. Of the older checkpoints, `retained`
        stay in the list; by default all that are in it."""
        self._number += 1
        checkpoint_id = CheckpointId(1_700_000_000_000 + self._number, 7)
        values, markers = {}, {}
        for task, backups in self._backups.items():
            own = dict(changes.get(task, {}))
            self._apply(store, task, own)
            found = {name: backup.commit_changes({store: own}, complete=True) for name, backup in backups.items()}
            offsets = {SystemStreamPartition("local", "in", task): str(self._number)}
            markers[task] = found
            values[task] = build_versions(checkpoint_id, offsets, found, self._versions)
        kept = None
        if retained is not None:
            ids = {each.id for each in retained}
            kept = {slot: own for slot, own in self.log.read().retained.items() if own in ids}
        record = replace(
            checkpoint(self.claim, self._number, self._parent),
            id=checkpoint_id,
            batch=self._number * 10 if batch is None else batch,
            task_count=len(self._backups),
            stores=self._layouts,
            next_offsets={task: {} for task in self._backups},
            tasks=values,
            retained=kept,
            identities=changelog_identities(markers),
        )
        self.log.append(record)
        self._parent = checkpoint_id
        self.content[str(checkpoint_id)] = {name: dict(entries) for name, entries in self._now.items()}
        return record

    def expected(self, record: CheckpointRecord, store: str = "first") -> Entries:
        """The content that a store must have, in the order of keys and tasks."""
        return dict(sorted(self.content[str(record.id)][store].items()))

    def close(self) -> None:
        """Close the engines and the backends; what was committed stays."""
        for harness in self.harnesses.values():
            harness.close()

    def _apply(self, store: str, task: int, changes: Changes) -> None:
        for key, value in changes.items():
            if value is None:
                self._now[store].pop((key, task), None)
            else:
                self._now[store][key, task] = value
