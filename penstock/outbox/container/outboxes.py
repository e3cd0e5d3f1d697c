"""The outboxes of a container's tasks in a commit: its snapshot takes them, its upload writes them as objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.checkpoint.id import CheckpointId
from penstock.errors import CorruptError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.outbox.objects import ObjectContents, encode, objects_of
from penstock.outbox.task import Outbox, OutboxSnapshot
from penstock.outbox.unpublished import OutboxObject
from penstock.runtime.stage.task_instance import TaskInstance


class OutboxUploads:
    """One commit's outboxes. Used by the thread of the snapshot, then by those of the upload: one for each task."""

    def __init__(
        self,
        tasks: Mapping[int, TaskInstance],
        objects: ObjectStore,
        paths: JobPaths,
        epoch: int,
        hold: Callable[[OutboxSnapshot, tuple[ObjectContents, ...]], None],
    ) -> None:
        """`hold` takes over the contents of an upload, with the spool that they read from."""
        self._tasks = tasks
        self._objects = objects
        self._paths = paths
        self._epoch = epoch
        self._hold = hold
        self._taken: dict[int, OutboxSnapshot] = {}
        self._uploaded: dict[int, list[OutboxObject]] = {}
        """Task → the objects of the last snapshot that are in the store."""

    def snapshot(self) -> None:
        """Take the messages since the last commit. Messages that an earlier snapshot took and did not upload are in
        no checkpoint, and its epoch ends."""
        self._uploaded = {}
        for number, task in self._tasks.items():
            outbox = task.kept_output
            if isinstance(outbox, Outbox) and (taken := outbox.take()) is not None:
                self._taken[number] = taken

    @property
    def waiting(self) -> list[int]:
        return list(self._taken)

    def uploaded(self) -> tuple[OutboxObject, ...]:
        """The objects of the last snapshot, those of a task in the order of publication."""
        return tuple(found for _, own in sorted(self._uploaded.items()) for found in own)

    def upload(self, task: int, checkpoint_id: CheckpointId) -> dict[str, str]:
        """Put the objects of a task. After a RetryableError, call it again: it continues where it stopped. Returns
        no markers."""
        taken = self._taken[task]
        contents = tuple(objects_of(taken, lambda n: self._paths.outbox(f"{self._epoch}-{checkpoint_id}-{task}-{n}")))
        done = self._uploaded.setdefault(task, [])
        for one in contents[len(done) :]:
            named, data = encode(one, task)
            if not self._objects.put_if_absent(named.key, data) and self._objects.get(named.key) != data:
                raise CorruptError(f"object `{named.key}` of the outbox exists already, with other content")
            done.append(named)
        del self._taken[task]
        self._hold(taken, contents)
        return {}

    def close(self) -> None:
        while self._taken:
            self._taken.popitem()[1].close()
