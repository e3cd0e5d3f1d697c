"""The container's part of exactly-once output: a commit's snapshot takes the outboxes of all tasks, its upload writes
them as objects, and the publisher publishes these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from penstock.base.files import explained
from penstock.checkpoint.id import CheckpointId
from penstock.container.part import Answers, ContainerPart, EpochContext
from penstock.errors import CorruptError
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.outbox.container.publisher import Publisher
from penstock.outbox.objects import encode, objects_of
from penstock.outbox.task import Outbox, OutboxSnapshot
from penstock.outbox.unpublished import OutboxObject
from penstock.outbox.wing import PUBLISH, Publish, PublishProgress

_PROGRESS_SECONDS = 0.2


class OutboxContainer(ContainerPart):
    """The outboxes of a container's tasks. Their commits use the thread of the snapshot, then those of the upload: one
    for each task."""

    name = "publication"

    def __init__(self, epoch: EpochContext) -> None:
        super().__init__(epoch)
        self.publisher = Publisher(self.resources)
        self._outboxes: dict[int, Outbox] = {}
        self._taken: dict[int, OutboxSnapshot] = {}
        self._uploaded: dict[int, list[OutboxObject]] = {}
        """Task → the objects of the last snapshot that are in the store."""

    def kept_output(self, task: int) -> Outbox | None:
        if self.resources.package.topology.outbox is None:
            return None
        folder = self.resources.folders.base
        with explained(f"the outbox of task {task} has no place in {folder}", "job.logged.store.base.dir"):
            folder.mkdir(parents=True, exist_ok=True)
        self._outboxes[task] = outbox = Outbox.of_container(task, self.resources.tasks, str(folder))
        return outbox

    # Commits.

    def snapshot(self) -> None:
        """Take the messages since the last commit. Messages that an earlier snapshot took and did not upload are in
        no checkpoint, and its epoch ends."""
        self._uploaded = {}
        for task, outbox in self._outboxes.items():
            if (taken := outbox.take()) is not None:
                self._taken[task] = taken

    def uploads(self, checkpoint_id: CheckpointId) -> list[Callable[[], None]]:
        return [partial(self._upload, task, checkpoint_id) for task in self._taken]

    def uploaded(self) -> tuple[OutboxObject, ...]:
        """The objects of the last snapshot, those of a task in the order of publication."""
        return tuple(found for _, own in sorted(self._uploaded.items()) for found in own)

    def _upload(self, task: int, checkpoint_id: CheckpointId) -> None:
        """Put the objects of a task. After a RetryableError, call it again: it continues where it stopped."""
        taken, named_after = self._taken[task], f"{self.resources.epoch}-{checkpoint_id}-{task}"
        contents = tuple(objects_of(taken, lambda n: self.resources.paths.outbox(f"{named_after}-{n}")))
        done = self._uploaded.setdefault(task, [])
        for one in contents[len(done) :]:
            named, data = encode(one, task)
            if (
                not self.resources.objects.put_if_absent(named.key, data)
                and self.resources.objects.get(named.key) != data
            ):
                raise CorruptError(f"object `{named.key}` of the outbox exists already, with other content")
            done.append(named)
        del self._taken[task]
        self.publisher.hold(taken, contents)

    def forget(self) -> None:
        while self._taken:
            self._taken.popitem()[1].close()

    # Publications.

    def answers(self) -> Mapping[str, Answers]:
        return {PUBLISH.name: self._publish}

    def _publish(self, request: Publish) -> Iterator[PublishProgress]:
        """Answer with the progress of the publication until it is complete."""
        publication = self.publisher.publish(request)
        while not publication.await_end(_PROGRESS_SECONDS):
            yield publication.progress()
        yield publication.progress()

    # As a service.

    def stop(self) -> None:
        self.publisher.stop()

    def status(self) -> str:
        return self.publisher.status()

    def metrics(self) -> Snapshot:
        if self.resources.package.topology.outbox is None:
            return self.publisher.metrics()
        size_bytes = sum(outbox.size_bytes for outbox in list(self._outboxes.values()))
        waiting = MetricId(f"container {self.resources.container}", "outbox", "bytes")
        return self.publisher.metrics().merged(Snapshot({waiting: GaugeValue(size_bytes)}))
