"""Backing up stores that were filled outside of a run: what imports have in common."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

from penstock.admin.checkpoint.change import NextCheckpoint
from penstock.checkpoint.record import CheckpointId
from penstock.checkpoint.task_values import Markers
from penstock.errors import PenstockError
from penstock.job.identity import settle
from penstock.state.backends.base import BackendContext, StoreCopy
from penstock.state.backends.registry import BackendAdmins
from penstock.state.backends.roots import BackendRoots
from penstock.state.outside_backup import BaseUpload, OutsideBackup
from penstock.system.base import System

logger = logging.getLogger(__name__)

_UPLOADERS = 4


@dataclass(slots=True)
class StoreUploads:
    """The stores of a job that is held, on their way to their backends. Used by one thread."""

    following: NextCheckpoint
    tasks: int
    systems: Mapping[str, System]
    _open: list[BaseUpload] = field(default_factory=list)
    _copies: list[StoreCopy] = field(default_factory=list)
    _stores: list[str] = field(default_factory=list)

    def prepare(self, stores: Sequence[str]) -> None:
        """Make what the backends keep for the stores. Raises PenstockError."""
        found, tasks, systems = self.following.found, self.tasks, self.systems
        uid, restorable = settle(found.objects, found.paths, found.config.job.root), self.following.view.restorable
        with closing(
            BackendAdmins(found.config, found.paths, found.objects, tasks, list(stores), systems, uid, restorable)
        ) as admins:
            admins.prepare(self.following.claim.epoch)

    def outside(self, before: CheckpointId, stores: Sequence[str]) -> OutsideBackup:
        """For a checkpoint after `before` whose stores other processes back up. The backends are prepared."""
        self.prepare(stores)
        found, following = self.following.found, self.following
        return OutsideBackup(found.config, found.paths, following.claim.epoch, before, following.id)

    def add(self, store: str, copies: Sequence[StoreCopy], roots: BackendRoots) -> None:
        """A store is to be backed up. `copies` has its content, task by task."""
        found, epoch = self.following.found, self.following.claim.epoch
        for backend in found.config.store(store).backup_factories:
            for task, copy in enumerate(copies):
                objects = roots.of(backend)
                context = BackendContext(objects, found.paths, task, (store,), epoch, found.config, self.systems)
                self._open.append(BaseUpload(backend, context))
                self._copies.append(copy)
                self._stores.append(store)

    def run(self, before: CheckpointId, checkpoint_id: CheckpointId) -> dict[int, Markers]:
        """Back everything up for a checkpoint. Returns the markers, task by task.

        Args:
            before: the checkpoint that it comes after.
        """
        with ThreadPoolExecutor(_UPLOADERS, thread_name_prefix="import") as pool:
            futures = [
                pool.submit(each.run, before, checkpoint_id, copy)
                for each, copy in zip(self._open, self._copies, strict=True)
            ]
            try:
                found: dict[int, dict[str, dict[str, str]]] = {}
                for each, store, future in zip(self._open, self._stores, futures, strict=True):
                    found.setdefault(each.task, {}).setdefault(each.backend, {})[store] = future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return dict(found)

    def done(self, checkpoint_id: CheckpointId, markers: Mapping[int, Markers]) -> None:
        """The checkpoint is in the log. What fails here costs space, no state: the job's next commit does it again."""
        for each, store in zip(self._open, self._stores, strict=True):
            try:
                each.done(checkpoint_id, markers[each.task][each.backend][store])
            except PenstockError as error:
                logger.warning("cleaning up in backend %s failed: %s", each.backend, error)

    def close(self) -> None:
        for each in self._open:
            each.close()
