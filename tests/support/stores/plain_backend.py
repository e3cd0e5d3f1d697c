"""A backend that a user might write: everything in one object, and nothing that leads from one marker to the next."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.checkpoint.record import CheckpointId
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
from penstock.state.engines.engine import Changes, decode_records, encode_records


class PlainBackup(TaskBackupManager):
    def __init__(self, context: BackendContext) -> None:
        self._context = context

    def init(self, checkpoint_id: CheckpointId | None, markers: Mapping[str, str]) -> None:
        pass

    def wants_copy(self, store: str, *, changed: bool, last: bool) -> bool:
        return True

    def snapshot(self, checkpoint_id: CheckpointId, changes: Mapping[str, Changes]) -> None:
        pass

    def upload(self, checkpoint_id: CheckpointId, copies: Mapping[str, StoreCopy]) -> Mapping[str, str]:
        markers = {}
        for store, copy in copies.items():
            context = self._context
            key = context.paths.metadata("plain", f"{store}-{context.task}-{context.epoch}-{checkpoint_id}")
            context.objects.put_if_absent(key, encode_records(dict(copy.entries())))
            markers[store] = key
        return markers

    def close(self) -> None:
        pass


class PlainRestore(TaskRestoreManager):
    def __init__(self, context: BackendContext) -> None:
        self._context = context

    def restore(self, store: str, marker: str, target: RestoreTarget, progress: RestoreProgress) -> None:
        data = self._context.objects.get(marker)
        target.engine().load(decode_records(data, marker))
        progress.report(len(data))


class PlainAdmin(StateBackendAdmin):
    def collect(self, retention: Retention, *, dry_run: bool) -> Garbage:
        return Garbage(())


class PlainFactory(StateBackendFactory):
    @property
    def name(self) -> str:
        return "plain"

    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        return PlainBackup(context)

    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        return PlainRestore(context)

    def admin(self, context: AdminContext) -> StateBackendAdmin:
        return PlainAdmin()
