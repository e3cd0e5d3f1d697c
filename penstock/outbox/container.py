"""The container's part of exactly-once output: a commit's snapshot takes the outboxes of all tasks, its upload writes
them as objects, and the publisher publishes these chunk by chunk.

How far publishing is, the output itself keeps, in the same atomic step as the messages. So it does not matter where
a publication ends, nor who continues it: the publisher's thread, or another container in another epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from penstock import errors
from penstock.api.ssp import SystemStreamPartition
from penstock.base.files import explained
from penstock.base.retry import Retry, interruptible, retry
from penstock.checkpoint.record import CheckpointId
from penstock.container.part import Answers, ContainerPart, EpochContext
from penstock.container.shared import EpochResources
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.outbox.task import Chunk, ObjectContents, Outbox, OutboxSnapshot, decode, encode, objects_of
from penstock.outbox.wing import PUBLISH, OutboxObject, Publish, PublishProgress
from penstock.system.base import Progress, SystemWriter, WriterIdentity, without_headers

logger = logging.getLogger(__name__)
T = TypeVar("T")
TRANSACTION_BYTES = 4 << 20
"""A transaction with more than one chunk has at most about so many bytes, which bounds its time as well."""
OPEN_BYTES = 64 << 20
"""Objects of about so many bytes are in memory together, because a transaction may have chunks of several."""
_AGAIN = Retry(pause_s=0.2)


class Publication:
    """One call to publish. Any thread may read its progress."""

    def __init__(self, request: Publish) -> None:
        self.request = request
        self.messages = 0
        self.waits_for = ""
        self.end: Future[None] = Future()

    def progress(self) -> PublishProgress:
        return PublishProgress(self.messages, self.waits_for)

    def await_end(self, timeout_s: float) -> bool:
        """True if it completes within `timeout_s`. Raises the error that it failed with."""
        try:
            self.end.result(timeout_s)
        except TimeoutError:
            if self.end.done():
                raise
            return False
        return True


@dataclass(slots=True)
class _Transaction:
    """Chunks of one system that are published together."""

    chunks: list[tuple[ObjectContents, Chunk]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, contents: ObjectContents, chunk: Chunk) -> None:
        self.chunks.append((contents, chunk))
        self.size_bytes += chunk.size_bytes


class Publisher:
    """The publications of one epoch, one after the other on a separate thread."""

    def __init__(self, resources: EpochResources) -> None:
        package = resources.package
        self._systems = package.systems
        self._identity = WriterIdentity(package.writer, resources.epoch)
        self._objects = resources.objects
        self._timeout_s = package.config.task.commit_timeout_ms / 1000
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"publish-{resources.epoch}")
        self._stopping = threading.Event()
        self._doing: Publication | None = None
        self._writers: dict[str, SystemWriter] = {}
        self._known: dict[SystemStreamPartition, Progress | None] = {}
        """The positions of the partitions that this epoch has asked about; None: nothing was published."""
        self._checked: set[SystemStreamPartition] = set()
        """The partitions whose position was checked not to be after the checkpoint log's last record."""
        self._lock = threading.Lock()
        self._held: dict[str, tuple[ObjectContents, OutboxSnapshot]] = {}
        """Key → an object that this process has made and not published."""
        self._metrics = MetricsRegistry(f"container {resources.container}")
        self._messages = self._metrics.new_counter("outbox", "published-messages")
        self._bytes = self._metrics.new_counter("outbox", "published-bytes")
        self._took = self._metrics.new_timer("outbox", "publish-ns")
        self._unpublished = self._metrics.new_gauge("outbox", "unpublished-messages")
        self._is_used = package.topology.outbox is not None

    def hold(self, taken: OutboxSnapshot, contents: Sequence[ObjectContents]) -> None:
        """Keep the objects of a commit until they are published, so that they need not be read from the store."""
        with self._lock:
            for one in contents:
                self._held[one.key] = one, taken
            self._count_held()

    def publish(self, request: Publish) -> Publication:
        publication = Publication(request)
        self._is_used = self._is_used or bool(request.objects)

        def run() -> None:
            self._doing = publication
            try:
                with interruptible(self._stopping):
                    self._publish(publication)
            finally:
                self._doing = None

        try:
            publication.end = self._thread.submit(run)
        except RuntimeError as error:
            raise self._left() from error
        return publication

    def metrics(self) -> Snapshot:
        """Empty in a job that publishes nothing."""
        return self._metrics.snapshot() if self._is_used else Snapshot()

    def stop(self) -> None:
        """End soon: a transaction that is under way commits, unless the system does not answer. A later epoch
        publishes the rest."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.submit(self._close_writers)
        self._thread.shutdown(wait=True)
        with self._lock:
            held, self._held = self._held, {}
        for _, taken in held.values():
            taken.close()

    def status(self) -> str:
        doing = self._doing
        if doing is None:
            return ""
        return f"publishing record {doing.request.slot}" + (f", waits for {doing.waits_for}" if doing.waits_for else "")

    # On the thread.

    def _publish(self, publication: Publication) -> None:
        slot = publication.request.slot
        waiting: dict[str, _Transaction] = {}
        self._learn({ssp for named in publication.request.objects for ssp in named.parts}, publication)
        open_bytes = 0
        for named in list(self._unfinished(publication)):
            if open_bytes >= OPEN_BYTES:
                self._commit_all(publication, waiting)
                open_bytes = 0
            contents = self._open(named, publication)
            open_bytes += named.size_bytes
            for chunk in contents.chunks:
                system = chunk.ssp.system
                transaction = waiting.setdefault(system, _Transaction())
                transaction.add(contents, chunk)
                if transaction.size_bytes >= TRANSACTION_BYTES:
                    self._commit(publication, system, waiting.pop(system))
        self._commit_all(publication, waiting)
        for named in publication.request.objects:
            self._release(named.key)
        logger.debug("published %d messages of record %d", publication.messages, slot)

    def _unfinished(self, publication: Publication) -> Iterator[OutboxObject]:
        """The objects that are not completely published. Counts the messages of the others."""
        slot, chunks = publication.request.slot, dict[SystemStreamPartition, int]()
        for named in publication.request.objects:
            for ssp, part in named.parts.items():
                chunks[ssp] = chunks.get(ssp, 0) + part.chunks
            if all(self._is_published(ssp, Progress(slot, chunks[ssp] - 1)) for ssp in named.parts):
                publication.messages += sum(part.messages for part in named.parts.values())
            else:
                yield named

    def _commit_all(self, publication: Publication, waiting: dict[str, _Transaction]) -> None:
        while waiting:
            system = min(waiting)
            self._commit(publication, system, waiting.pop(system))

    def _commit(self, publication: Publication, system: str, transaction: _Transaction) -> None:
        """Publish the chunks of one system that are not published yet, in one transaction."""
        slot, ssps = publication.request.slot, {chunk.ssp for _, chunk in transaction.chunks}

        def work() -> None:
            self._ask(system, ssps, publication.request.newest)
            rest = [
                (contents, chunk)
                for contents, chunk in transaction.chunks
                if not self._is_published(chunk.ssp, Progress(slot, chunk.number))
            ]
            marks = {chunk.ssp: Progress(slot, chunk.number) for _, chunk in rest}
            if not rest:
                return
            carries = self._systems[system].carries_headers
            try:
                with self._took.time(), self._writer(system).begin() as writing:
                    for contents, chunk in rest:
                        records = contents.records(chunk)
                        writing.append(chunk.ssp, records if carries else without_headers(records))
                    for ssp, progress in marks.items():
                        writing.mark(ssp, progress)
            except BaseException:
                self._forget(system)  # it may have been published all the same
                raise
            self._known.update(marks)
            self._messages.inc(sum(chunk.messages for _, chunk in rest))
            self._bytes.inc(sum(chunk.size_bytes for _, chunk in rest))

        self._trying(work, publication, f"the system `{system}`")
        publication.messages += sum(chunk.messages for _, chunk in transaction.chunks)

    def _learn(self, ssps: set[SystemStreamPartition], publication: Publication) -> None:
        """Read the positions of all these partitions, with one question to each system."""
        newest = publication.request.newest
        for system in sorted({ssp.system for ssp in ssps}):
            own = {ssp for ssp in ssps if ssp.system == system}
            self._trying(lambda: self._ask(system, own, newest), publication, f"the system `{system}`")  # noqa: B023

    def _ask(self, system: str, ssps: set[SystemStreamPartition], newest: int) -> None:
        missing = sorted(ssps - self._known.keys())
        if missing:
            found = self._writer(system).progress(missing)
            for ssp in missing:
                if ssp in found and ssp not in self._checked and found[ssp].slot > newest:
                    raise errors.IncompatibleError(
                        f"`{ssp}` has output of record {found[ssp].slot} of this job, and the newest record of the "
                        f"checkpoint log that can have been published is {newest}: the job's folder is older than its "
                        "output, as after a backup was restored. Nothing was published, because messages would be "
                        "taken for published that are not. Bring the newer folder back, or give the job a new `job.id`"
                    )
            self._checked.update(missing)
            self._known.update({ssp: found.get(ssp) for ssp in missing})

    def _is_published(self, ssp: SystemStreamPartition, progress: Progress) -> bool:
        known = self._known[ssp]
        return known is not None and progress <= known

    def _forget(self, system: str) -> None:
        for ssp in [ssp for ssp in self._known if ssp.system == system]:
            del self._known[ssp]

    def _trying(self, work: Callable[[], T], publication: Publication, what: str) -> T:
        """Repeat `work`, which must be idempotent, until it succeeds or takes too long."""
        if self._stopping.is_set():
            raise self._left()

        def note(error: Exception) -> None:
            publication.waits_for = f"{what}: {error}"
            logger.warning("the publication of record %d waits for %s", publication.request.slot, publication.waits_for)

        try:
            return retry(work, replace(_AGAIN, within_s=self._timeout_s), interrupt=self._stopping, on_failure=note)
        except errors.ContainerLostError:
            raise
        except errors.RetryableError as error:
            if self._stopping.is_set():
                raise self._left() from error
            raise errors.PenstockTimeoutError(
                f"the output of record {publication.request.slot} could not be published within "
                f"{self._timeout_s:.0f} s (task.commit.timeout.ms), because of {what}: {error}. Nothing is lost: the "
                "next start publishes it first"
            ) from error
        finally:
            publication.waits_for = ""

    def _open(self, named: OutboxObject, publication: Publication) -> ObjectContents:
        with self._lock:
            held = self._held.get(named.key)
        if held is not None:
            return held[0]
        try:
            data = self._trying(lambda: self._objects.get(named.key), publication, f"object `{named.key}`")
        except errors.NotFoundError as error:
            raise errors.NotFoundError(
                f"object `{named.key}` of the outbox is not in the store, although not all of it is published: output "
                f"of task {named.task} in record {publication.request.slot} is lost, unless the object is put back"
            ) from error
        return decode(named, data)

    def _release(self, key: str) -> None:
        """Mark the object as published. Its messages are closed after the last object made from them."""
        with self._lock:
            found = self._held.pop(key, None)
            self._count_held()
            if found is None or any(taken is found[1] for _, taken in self._held.values()):
                return
        found[1].close()

    def _count_held(self) -> None:
        self._unpublished.set(sum(chunk.messages for held, _ in self._held.values() for chunk in held.chunks))

    def _writer(self, system: str) -> SystemWriter:
        if system not in self._writers:
            if system not in self._systems:
                raise errors.ConfigError(f"output is to be published to the system `{system}`, which is not configured")
            self._writers[system] = self._systems[system].writer(self._identity)
        return self._writers[system]

    def _close_writers(self) -> None:
        while self._writers:
            system, writer = self._writers.popitem()
            try:
                writer.close()
            except Exception as error:
                logger.warning("the writer of the system `%s` was not closed cleanly: %s", system, error)

    def _left(self) -> errors.ContainerLostError:
        return errors.ContainerLostError(
            f"this container leaves epoch {self._identity.epoch}: a later one publishes the rest"
        )


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
                raise errors.CorruptError(f"object `{named.key}` of the outbox exists already, with other content")
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
