"""Backing up a store that was filled outside of a run."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from penstock.base.retry import Retry, retry
from penstock.checkpoint.record import CheckpointId
from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.state.backends.base import BackendContext, StoreCopy, TaskBackupManager
from penstock.state.backends.registry import backend_factory
from penstock.state.backends.roots import BackendRoots
from penstock.system.registry import open_systems

_UPLOAD = Retry(pause_s=0.4, tries=5)
_BASE_POLL_S = 0.2
_MANY = 10**15


class BaseUpload:
    """One task's store, as a base in one backend. Between `run` and `done` its marker may be put into the log."""

    def __init__(self, backend: str, context: BackendContext) -> None:
        self.backend = backend
        self.task = context.task
        (self._store,) = context.stores
        self._manager: TaskBackupManager = backend_factory(backend).backup_manager(context)

    def run(self, before: CheckpointId, checkpoint_id: CheckpointId, copy: StoreCopy) -> str:
        """Back up the copy for a checkpoint that will come after `before`. Returns the marker.

        Raises:
            PenstockError: it failed. No checkpoint names the objects that it wrote.
        """
        manager, store = self._manager, self._store
        manager.init(before, {})
        wanted = manager.wants_copy(store, changed=False, last=False)
        manager.snapshot(checkpoint_id, {store: {}})
        while (marker := self._upload(checkpoint_id, {store: copy} if wanted else {})) is None:
            if not wanted:
                raise PenstockError(
                    f"backend {self.backend} neither asked for the content of store `{store}` nor has a marker for it"
                )
            time.sleep(_BASE_POLL_S)
        return marker

    def _upload(self, checkpoint_id: CheckpointId, copies: dict[str, StoreCopy]) -> str | None:
        return retry(lambda: self._manager.upload(checkpoint_id, copies), _UPLOAD).get(self._store)

    def done(self, checkpoint_id: CheckpointId, marker: str) -> None:
        self._manager.clean_up(checkpoint_id, {self._store: marker})

    def close(self) -> None:
        self._manager.close()


@dataclass(frozen=True, slots=True)
class OutsideBackup:
    """The backups of one checkpoint, which must name a backup of every store of every task. Picklable: other processes
    make these backups while the job is held.

    A second backup of a store and a task, as by a task of Spark that is repeated, is another one: it finds nothing of
    the first, which no checkpoint names.
    """

    config: JobConfig
    paths: JobPaths
    epoch: int
    before: CheckpointId
    checkpoint_id: CheckpointId

    def upload(self, task: int, store: str, copy: StoreCopy) -> dict[str, str]:
        """Back up a copy of a store of a task. Returns its marker in each backend of the store.

        Raises:
            PenstockError: a backend failed. No checkpoint names the objects that it wrote.
        """
        config = self.config
        # Names of objects have the id. Files of RocksDB differ even where their entries do not.
        own_id = replace(self.checkpoint_id, nanos=secrets.randbelow(_MANY))
        with ExitStack() as stack:
            objects = open_job_root(config.job)
            stack.callback(objects.close)
            roots = BackendRoots(config, objects)
            stack.callback(roots.close)
            systems = open_systems(config)
            markers = {}
            for backend in config.store(store).backup_factories:
                own = roots.of(backend)
                context = BackendContext(own, self.paths, task, (store,), self.epoch, config, systems)
                upload = BaseUpload(backend, context)
                stack.callback(upload.close)
                markers[backend] = upload.run(self.before, own_id, copy)
            return markers
