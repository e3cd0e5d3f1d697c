"""The state backend of a rehearsal. What the state is at the end goes with the run; what it is at the beginning may be
kept in a folder for the next run, which then does not restore it from the job's backends once more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from penstock.checkpoint.record import CheckpointId
from penstock.config.model import JobConfig
from penstock.state.backends.base import (
    AdminContext,
    BackendContext,
    Garbage,
    RestoreProgress,
    RestoreTarget,
    Retention,
    StateBackendAdmin,
    StateBackendFactory,
    StoreCopy,
    TaskBackupManager,
    TaskRestoreManager,
)
from penstock.state.engines.engine import Changes

_NOWHERE = "nowhere"


def kept_at(folder: Path, store: str, task: int) -> Path:
    """The folder of a store as it was when the first run began; no folder, if it is not kept."""
    return folder / "kept" / store / str(task)


def keep_in(folder: Path) -> None:
    """Let the runs in a folder keep their stores as of the beginning."""
    (folder / "kept").mkdir()


def state_in(folder: Path) -> Path:
    """The base directory of the stores of a run in a folder."""
    return folder / "state"


class KeptFactory(StateBackendFactory):
    """Writes the first commit of a run to a folder, if its stores are in RocksDB, and no other one anywhere."""

    @property
    def name(self) -> str:
        return "kept"

    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        return _Backup(context)

    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        return _Restore()

    def admin(self, context: AdminContext) -> StateBackendAdmin:
        return _Admin()


def _folder_of(config: JobConfig) -> Path:
    return Path(config.job.logged_store_base_dir).parent


class _Backup(TaskBackupManager):
    def __init__(self, context: BackendContext) -> None:
        folder, self._stores = _folder_of(context.config), context.stores
        self._places: dict[str, Path] = {}
        """The stores that are still to be kept."""
        if (folder / "kept").is_dir():
            places = {store: kept_at(folder, store, context.task) for store in context.stores}
            in_files = {store for store in context.stores if context.config.store(store).factory == "rocksdb"}
            self._places = {store: at for store, at in places.items() if store in in_files and not at.exists()}

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None: ...

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        return store in self._places

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None: ...

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        for store, copy in copies.items():
            shutil.copytree(copy.directory, self._places[store], copy_function=_linked)
        self._places = {}
        return dict.fromkeys(self._stores, _NOWHERE)

    def close(self) -> None: ...


class _Restore(TaskRestoreManager):
    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        shutil.copytree(marker, target.directory, copy_function=_linked, dirs_exist_ok=True)


def _linked(source: str, target: str) -> None:
    """Copy a file, or link it if an engine never changes it."""
    if source.endswith(".sst"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


class _Admin(StateBackendAdmin):
    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        return Garbage(())
