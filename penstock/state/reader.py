"""Reading a store as of a checkpoint, from outside of the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, markers
from penstock.config.model import JobConfig
from penstock.errors import NotFoundError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.registry import backend_factory
from penstock.state.engine import MemoryEngine


def read_store(
    config: JobConfig, store: str, record: CheckpointRecord | None = None
) -> Iterator[tuple[int, bytes, bytes]]:
    """(task, key, value) of every entry, by task and key, as of a checkpoint (the last one by default).

    Each task's part is held in memory while it is read. Looks at no local file and disturbs no running job.

    Raises:
        NotFoundError: the job has no checkpoint, or the checkpoint no such store.
    """
    objects = open_store(config.job.root)
    paths = JobPaths(config.job.name, config.job.id)
    try:
        chosen = record or _last(objects, paths)
        if store not in chosen.stores:
            known = ", ".join(f"`{name}`" for name in chosen.stores) or "none"
            raise NotFoundError(f"checkpoint {chosen.id} has no store `{store}`; it has: {known}")
        for task in range(chosen.task_count):
            engine = MemoryEngine()
            context = BackendContext(objects, paths, task, (store,), chosen.epoch)
            for name, own in markers(chosen, task).items():
                if store in own:
                    progress = RestoreProgress(threading.Event(), lambda _: None)
                    backend_factory(name).restore_manager(context).restore(own[store], store, engine, progress)
                    break
            yield from ((task, key, value) for key, value in engine.scan(None, None))
    finally:
        objects.close()


def _last(objects: ObjectStore, paths: JobPaths) -> CheckpointRecord:
    checkpoints = CheckpointLog(objects, paths).read().checkpoints
    if not checkpoints:
        raise NotFoundError(f"job `{paths.root}` has no checkpoint yet: it never started, or job.root is another")
    return checkpoints[-1]
