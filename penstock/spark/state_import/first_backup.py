"""The backups of a job's first checkpoint, made where the entries are."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoint.id import CheckpointId
from penstock.config.model import JobConfig
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.spark.state_import.load import BaseUpload, StoreLoad
from penstock.state.backends.base import BackendContext
from penstock.state.backends.roots import BackendRoots
from penstock.system.registry import open_systems


@dataclass(frozen=True, slots=True)
class FirstBackup:
    """The inputs of a job's first checkpoint, which must name a backup of every store of every task. Picklable: other
    processes make these backups while the job is held."""

    config: JobConfig
    paths: JobPaths
    epoch: int
    before: CheckpointId
    checkpoint_id: CheckpointId
    tasks: int
    stores: tuple[str, ...]

    def run(self, task: int, store: str, entries: Iterable[tuple[bytes, bytes]], scratch: Path) -> dict[str, str]:
        """Back up a store of a task. Returns its marker in each backend.

        It runs once for each store and task in an epoch. A second run with the same entries may fail, because it finds
        what the first one wrote.

        Args:
            task: the task.
            store: the store.
            entries: all that the store holds, as its engine has them.
            scratch: a folder of this call alone.

        Raises:
            IncompatibleError: there are two entries of one key.
            PenstockError: a backend failed. No checkpoint names the objects that it wrote.
        """
        config = self.config
        with ExitStack() as stack:
            objects = open_job_root(config.job)
            stack.callback(objects.close)
            roots = BackendRoots(config, objects)
            stack.callback(roots.close)
            load = StoreLoad(config.store(store), 1, scratch)
            stack.callback(load.close)
            for key, value in entries:
                load.put(0, key, value)
            (copy,) = load.copies()
            systems = open_systems(config)
            markers = {}
            for backend in config.store(store).backup_factories:
                own = roots.of(backend)
                context = BackendContext(own, self.paths, task, (store,), self.epoch, config, systems)
                upload = BaseUpload(backend, context)
                stack.callback(upload.close)
                markers[backend] = upload.run(self.before, self.checkpoint_id, copy)
            return markers
