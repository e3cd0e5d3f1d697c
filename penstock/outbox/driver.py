"""The driver's part of exactly-once output: publishes the objects that a record names, once it is in the log, then
deletes them. Objects that no record will ever name are deleted too.

Everything up to a record is published before what the next one names: slot by slot. The containers do it, and read
from each system how far it has come, so it may be asked for any number of times.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from penstock import errors
from penstock.base.retry import Retry, retry
from penstock.base.wording import counted, listed
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart, RunContext
from penstock.job.paths import JobPaths, outbox_epoch
from penstock.objects.store import ObjectStore
from penstock.outbox import wing
from penstock.wire.ports import Fleet
from penstock.wire.protocol import Markers, load

logger = logging.getLogger(__name__)


class OutboxGarbage:
    """Deletes the objects of a job's outbox that the last record does not leave to be published.

    Of the present epoch the driver deletes only objects that its records have named: one that none has named yet may
    be a commit's in flight. An object of an older epoch that the last record does not leave is never named again. Such
    objects are found by listing, once an epoch.
    """

    def __init__(self, objects: ObjectStore, paths: JobPaths, log: CheckpointLog) -> None:
        self._objects = objects
        self._paths = paths
        self._log = log
        self._lock = threading.Lock()
        self._named: set[str] = set()
        """Objects named by records of this driver and not deleted yet."""
        self._swept_epoch: int | None = None

    def note(self, record: CheckpointRecord) -> None:
        found = record.section(wing.OUTBOX)
        objects = (*found.objects, *(each for own in found.unpublished for each in own.objects))
        with self._lock:
            self._named |= {wing.outbox_name(each.key) for each in objects}

    def collect(self, record: CheckpointRecord) -> None:
        """Delete the objects that this record, the newest in the log, does not leave. Failed deletions are tried
        again with the next record."""
        if not record.section(wing.OUTBOX).publisher:
            return
        with self._lock:
            named = set(self._named)
        left = wing.owed_of(self._log.known()).names
        try:
            for name in sorted(named - left):
                self._objects.delete(self._paths.outbox(name))
                with self._lock:
                    self._named.discard(name)
            if self._swept_epoch != record.epoch:
                for key in outbox_garbage(self._objects, self._paths, record.epoch, left):
                    self._objects.delete(key)
                self._swept_epoch = record.epoch
        except errors.PenstockError as error:
            logger.warning(
                "deleting what was published before checkpoint %s failed; the next commit tries again: %s",
                record.id,
                error,
            )


def outbox_garbage(objects: ObjectStore, paths: JobPaths, epoch: int, left: frozenset[str]) -> list[str]:
    """The keys of the objects of older epochs that are not `left` to be published."""
    return [
        key
        for key in objects.list(paths.outbox())
        if (written := outbox_epoch(key)) is not None and written < epoch and wing.outbox_name(key) not in left
    ]


@dataclass(frozen=True, slots=True)
class PublishingProgress:
    """The publication of exactly-once output that checkpoints have and readers do not see yet."""

    messages: int
    done: int
    outputs: tuple[str, ...]
    began: float
    """On the run's monotonic clock, in seconds."""
    waits_for: str = ""
    """The reason why it does not go on, in words; empty if there is none."""

    @property
    def left(self) -> int:
        return self.messages - self.done

    def __str__(self) -> str:
        waits = f", waits for {self.waits_for}" if self.waits_for else ""
        return f"{self.done:,} of {counted(self.messages, 'message')} to {', '.join(self.outputs)}{waits}"


_LOG_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_KINDS = (
    errors.ConfigError,
    errors.CorruptError,
    errors.IncompatibleError,
    errors.NotFoundError,
    errors.PenstockTimeoutError,
)


class Publishing:
    """Publishes a job's output: at the start of an epoch in the run loop's thread, after a record in its own."""

    def __init__(self, run: RunContext) -> None:
        job = run.job
        self.debts = wing.Debts(job.log, job.uid, job.paths)
        """The output that is to be published."""
        self._publisher = job.plan.publisher
        self._admins = job.streams.admins
        self._fleet = run.fleet
        self._again = Retry(pause_s=_PAUSE_SECONDS, within_s=job.config.task.commit_timeout_ms / 1000)
        self._board = run.board
        self._stop = run.stop.immediate
        self._clock = run.clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._begun: Future[None] | None = None

    def settle(self, epoch: int) -> None:
        """Publish everything that the last record of the log leaves, before the first batch of an epoch.

        Raises:
            FencedError: another driver owns the job.
            ContainerLostError: a container was lost, or the run is to end.
            RetryableError: it may succeed in another epoch.
            PenstockError: it cannot be published.
        """
        owed = self.debts.now()
        if not owed.unpublished:
            return
        logger.info(
            "checking whether %s of the last checkpoint are published; those that are not come first",
            counted(owed.messages, "message"),
        )
        with self._board.during("publishing", "outbox"):
            self._publish(owed, epoch, self._stop, self.debts.newest())

    def begin(self, epoch: int, abandoned: threading.Event) -> Future[None]:
        """Publish the output that the newest record leaves, in the background. Done once readers see all of it.

        Args:
            epoch: the epoch of the record.
            abandoned: set when the epoch ends.
        """
        owed = self.debts.now()
        if not owed.unpublished:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        self._show(owed, 0, self._clock.monotonic())  # it waits from now on
        newest = owed.unpublished[-1].slot - 1  # nobody knew its own record before
        self._begun = self._thread.submit(self._in_background, epoch, abandoned, newest)
        return self._begun

    @property
    def waits_for(self) -> str:
        """The reason why the publication under way waits, in words, or else its outputs. Empty if there is none."""
        progress = self._board.wings.get("outbox")
        return "" if progress is None else progress.waits_for or listed([f"`{each}`" for each in progress.outputs])

    def close(self) -> None:
        """End the thread, without waiting for a publication that was abandoned. No call follows."""
        idle = self._begun is None or self._begun.done()
        self._thread.shutdown(wait=idle, cancel_futures=not idle)

    def _in_background(self, epoch: int, abandoned: threading.Event, newest: int) -> None:
        def publish() -> None:
            if abandoned.is_set():
                raise errors.ContainerLostError("a publication was abandoned with its epoch")
            self._publish(self.debts.now(), epoch, abandoned, newest)

        try:
            retry(publish, self._again, interrupt=abandoned, clock=self._clock)
        except (errors.ContainerLostError, errors.FencedError):
            raise
        except errors.RetryableError as error:
            if abandoned.is_set():
                raise errors.ContainerLostError("a publication was abandoned with its epoch") from error
            raise errors.PenstockError(_failed(self.debts.now(), error)) from error

    def _publish(self, owed: wing.OwedOutput, epoch: int, abandoned: threading.Event, newest: int) -> None:
        """`newest`: the newest record that anything can have been published of."""
        began, before = self._clock.monotonic(), 0
        self._show(owed, 0, began)
        try:
            for each in owed.unpublished:
                watch = _Watch(self._fleet, abandoned, self._reports(owed, before, began))
                request = wing.Publish(each.slot, each.objects, newest)
                self._fleet.ask(wing.PUBLISH, epoch, request, abandoned=abandoned, on_answer=watch.answered)
                if watch.messages != each.messages:
                    raise errors.PenstockError(
                        f"the containers have published {watch.messages:,} of the {each.messages:,} messages of record "
                        f"{each.slot}, and say that it is complete. Nothing is lost: the next start publishes the rest"
                    )
                self._show_to_readers(each)
                self.debts.published(each.slot)
                before += each.messages
        except _KINDS as error:
            kind = next(kind for kind in _KINDS if isinstance(error, kind))
            raise kind(_failed(self.debts.now(), error)) from error
        finally:
            self._board.tell("outbox", self._board.wings.get("outbox") if self.debts.now().unpublished else None)

    def _show_to_readers(self, published: wing.UnpublishedObjects) -> None:
        """All of a record has been published: readers may see it."""
        for stream in sorted(published.streams):
            self._admins[stream.system].published(stream.stream, self._publisher, published.slot)

    def _reports(self, owed: wing.OwedOutput, before: int, began: float) -> Callable[[int, str], None]:
        logged = began

        def report(done: int, waits_for: str) -> None:
            nonlocal logged
            progress = self._show(owed, before + done, began, waits_for)
            now = self._clock.monotonic()
            if now - logged >= _LOG_SECONDS:
                logged = now
                logger.warning("publishing for %.0f s: %s", now - began, progress)

        return report

    def _show(self, owed: wing.OwedOutput, done: int, began: float, waits_for: str = "") -> PublishingProgress:
        progress = PublishingProgress(owed.messages, done, tuple(sorted(map(str, owed.streams))), began, waits_for)
        self._board.tell("outbox", progress)
        return progress


class _Watch:
    """Adds up the containers' answers, and ends the call with the epoch."""

    def __init__(self, fleet: Fleet, abandoned: threading.Event, report: Callable[[int, str], None]) -> None:
        self._fleet = fleet
        self._abandoned = abandoned
        self._report = report
        self._lock = threading.Lock()
        self._done: dict[str, wing.PublishProgress] = {}

    @property
    def messages(self) -> int:
        with self._lock:
            return sum(answer.messages for answer in self._done.values())

    def answered(self, container: str, answer: wing.PublishProgress) -> None:
        """Take a container's answer. Called by several threads. Raises ContainerLostError to end the call."""
        if self._abandoned.is_set():
            raise errors.ContainerLostError("a publication was abandoned with its epoch")
        if self._fleet.any_lost:
            raise errors.ContainerLostError(self._fleet.loss())
        with self._lock:
            self._done[container] = answer
            waits_for = next(filter(None, (each.waits_for for each in self._done.values())), "")
            self._report(sum(each.messages for each in self._done.values()), waits_for)


def _failed(owed: wing.OwedOutput, error: Exception) -> str:
    outputs = listed([f"`{stream}`" for stream in sorted(map(str, owed.streams))])
    return (
        f"{counted(owed.messages, 'message')} of the last checkpoint cannot be published to {outputs}: {error}. "
        "Nothing is lost: remove the cause, and the next start publishes first what readers do not see yet"
    )


class OutboxDriver(DriverPart):
    """Publishes the output of a run."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._publishing = Publishing(run)
        self.debts = self._publishing.debts
        self._garbage = OutboxGarbage(run.job.objects, run.job.paths, run.job.log)

    def enter(self, epoch: int) -> None:
        """Publish first what the last record of the log leaves."""
        self._publishing.settle(epoch)

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        """The objects that the record is to publish, and what earlier ones leave."""
        objects = [each for own in uploaded for each in load(tuple[wing.OutboxObject, ...], own)]
        return {wing.OUTBOX: wing.outbox_section(self.debts.now(), objects, self.run.job.plan.publisher)}

    def publish(self, record: CheckpointRecord, abandoned: threading.Event) -> Future[None]:
        return self._publishing.begin(record.epoch, abandoned)

    def waits_for(self) -> str:
        return self._publishing.waits_for

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        self._garbage.note(record)

    def collect(self, record: CheckpointRecord) -> None:
        self._garbage.collect(record)

    def close(self) -> None:
        self._publishing.close()
