"""A container: the tasks it holds in the current epoch, and what may be done to them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.checkpoint.id import CheckpointId
from penstock.config.model import JobConfig
from penstock.container.protocol import (
    AttemptCall,
    Beat,
    CleanUpCall,
    CommitCall,
    EndCall,
    FinishCall,
    Identity,
    OpenCall,
    StartRun,
)
from penstock.container.storage import ContainerStorage
from penstock.errors import ContainerLostError
from penstock.runtime.attempt import Attempt, new_token
from penstock.runtime.batch import NO_BATCH
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.packet import Packet
from penstock.runtime.sources import DiscardedAttemptError
from penstock.runtime.task_instance import HOLD_SECONDS, TaskInstance
from penstock.runtime.topology import Topology
from penstock.system.base import System

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobPackage:
    """Everything of a job that a container needs, pickled by the driver."""

    topology: Topology
    settings: RuntimeSettings
    config: JobConfig
    job_uid: str
    probe: str
    """Key of an object that the driver has just put under job.root."""
    systems: Mapping[str, System]


class RunningAttempt:
    """An attempt and the right to touch it. Whoever holds the lock may; once cancelled, nobody may any more."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.lock = threading.Lock()
        self.cancelled = False
        self._busy_since: float | None = None
        self._seen: object = None
        """How far it was when somebody last looked."""

    @contextmanager
    def touch(self) -> Iterator[Attempt]:
        """Process something. Raises DiscardedAttemptError if the attempt was cancelled meanwhile."""
        with self.lock:
            if self.cancelled:
                raise DiscardedAttemptError("the attempt was cancelled: a newer one of its task has begun")
            self._busy_since = time.monotonic()
            try:
                yield self.attempt
            finally:
                self._busy_since = None

    def stalled_seconds(self, now: float) -> float:
        """How long the attempt has been processing one message, as far as calls of this from time to time tell.

        Without the lock: its holder may be stuck.
        """
        since = self._busy_since
        if since is None:
            return 0.0
        position = self.attempt.instance.position
        seen = position.progress()
        if seen != self._seen:
            self._seen = seen
            self._busy_since = now
            return 0.0
        return now - since

    def processing(self) -> str:
        """Which message it processes, in words; empty between messages. Without the lock, as `stalled_seconds`."""
        if self._busy_since is None:
            return ""
        instance = self.attempt.instance
        return f"{instance.position.describe()} in task {instance.task}, stage {instance.stage}"


class Container:
    """The state of one container process. Thread-safe: calls come from Flight's threads."""

    def __init__(self, container: str, incarnation: str) -> None:
        self.container = container
        self.incarnation = incarnation
        self._lock = threading.Lock()
        self._epoch = -1
        self._tasks: dict[int, TaskInstance] = {}
        self._package: JobPackage | None = None
        self._storage: ContainerStorage | None = None
        self._running: dict[tuple[int, int], RunningAttempt] = {}
        self._batch = NO_BATCH
        """The run whose attempts may come."""
        self._processed = 0
        """Messages that its attempts have processed that are finished."""
        self._cancel_restore = threading.Event()
        self._open_lock = threading.Lock()

    # Entering an epoch.

    def open(self, call: OpenCall, package: JobPackage, report: Callable[[int], None]) -> list[str]:
        """Enter a new epoch: cancel and join what the older one started, then restore the tasks. Returns what went
        wrong on the way, though it went well in the end.

        What cannot be cancelled within `task.shutdown.ms` ends the process: the driver sees a lost container.
        """
        with self._lock:
            self._check_incarnation(call.identity)
            if call.identity.epoch <= self._epoch:
                raise ContainerLostError(f"epoch {call.identity.epoch} is not newer than {self._epoch}")
            self._epoch = call.identity.epoch
            self._cancel_restore.set()
        if not self._open_lock.acquire(timeout=package.config.task.shutdown_ms / 1000):
            _exit("an older restore did not stop in time")
        try:
            self._leave_epoch(package.config.task.shutdown_ms / 1000)
            self._cancel_restore = cancelled = threading.Event()
            with self._lock:
                if call.identity.epoch != self._epoch:
                    raise ContainerLostError(f"epoch {call.identity.epoch} was overtaken by {self._epoch}")
            storage = ContainerStorage(package, self.container, call.identity.epoch, len(call.tasks))
            storage.check_root()
            tasks = storage.restore(call, cancelled, report)
            with self._lock:
                self._package, self._storage, self._tasks = package, storage, tasks
                self._batch = NO_BATCH
            return list(storage.failed_restores)
        finally:
            self._open_lock.release()

    def _leave_epoch(self, deadline_s: float) -> None:
        with self._lock:
            running, self._running = self._running, {}
            tasks, self._tasks = self._tasks, {}
            storage, self._storage = self._storage, None
        reason = f"what the older epoch started did not end within {deadline_s:.0f} s (task.shutdown.ms)"
        deadline = threading.Timer(deadline_s, _exit, [reason])
        deadline.daemon = True
        deadline.start()
        try:
            for (_, task), attempt in running.items():
                with attempt.lock:
                    self._discard_locked(attempt, tasks.get(task))
            if storage is not None:
                storage.stop()
            for instance in tasks.values():
                instance.close()
            if storage is not None:
                storage.close()
        finally:
            deadline.cancel()

    # Attempts.

    def start_run(self, call: StartRun) -> None:
        """A run of a batch begins: drop what an earlier run of it left."""
        with self._lock:
            self._check(call.identity)
            self._batch = call.batch
            self._processed = 0
            tasks = list(self._tasks.values())
            running, self._running = self._running, {}
        for (_, task), attempt in running.items():
            with attempt.lock:
                self._discard_locked(attempt, self._tasks.get(task))
        for instance in tasks:
            instance.drop_attempts()

    def start_attempt(self, call: AttemptCall, number: int) -> RunningAttempt:
        """Begin the attempt of one of the tasks; an older one of this stage and task is cancelled first, and joined."""
        place = (call.stage, number)
        with self._lock:
            task = self._check_attempt(call, number)
            older = self._running.get(place)
        if older is not None:
            with older.lock:  # it stays listed until then, so that a beat tells how long this takes
                self._discard_locked(older, task)
        running = RunningAttempt(task.start_attempt(call.stage, new_token(), call.batch))
        with self._lock:
            try:
                self._check_attempt(call, number)
                if self._running.get(place) is not older:
                    raise ContainerLostError(f"two attempts of stage {call.stage} task {number} began at once")
            except ContainerLostError:
                task.discard_attempt(running.attempt)
                raise
            self._running[place] = running
        return running

    def process(self, running: RunningAttempt, packet: Packet) -> list[Packet]:
        """Feed a packet to an attempt; what it has ready to send comes back."""
        with running.touch() as attempt:
            return list(attempt.accept(packet))

    def finish(self, running: RunningAttempt) -> list[Packet]:
        """The rest of an attempt's output; it now waits for End."""
        with running.touch() as attempt:
            rest = list(attempt.finish())
            instance = attempt.instance
            with self._lock:
                task = self._tasks.get(instance.task)
                if task is None or self._running.pop((instance.stage, instance.task), None) is not running:
                    raise DiscardedAttemptError("the attempt was cancelled")
                self._processed += attempt.processed
            running.cancelled = True  # it belongs to the task from here on
            task.finish_attempt(attempt)
        return rest

    def abandon(self, running: RunningAttempt) -> None:
        """The attempt's stream broke, or its input was not complete: discard it and all it touched."""
        with self._lock:
            instance = running.attempt.instance
            place = (instance.stage, instance.task)
            if self._running.get(place) is running:
                del self._running[place]
            task = self._tasks.get(instance.task)
        with running.lock:
            self._discard_locked(running, task)

    def _discard_locked(self, running: RunningAttempt, task: TaskInstance | None) -> None:
        if running.cancelled:
            return
        running.cancelled = True
        if task is not None:
            task.discard_attempt(running.attempt)

    # End and commit.

    def end(self, call: EndCall) -> None:
        """Apply the batch in every task of this container, exactly these attempts. Idempotent.

        Raises RetryableError while stores are being copied: nothing was applied yet.
        """
        with self._lock:
            self._check(call.identity)
            tasks = dict(self._tasks)
        if {str(task) for task in tasks} != call.tokens.keys():
            raise ContainerLostError(f"End names tasks {sorted(call.tokens)}, this container has {sorted(tasks)}")
        deadline = time.monotonic() + HOLD_SECONDS
        for instance in tasks.values():
            instance.await_copies(max(0.0, deadline - time.monotonic()))
        for task, instance in tasks.items():
            instance.end(call.batch.number, {int(stage): token for stage, token in call.tokens[str(task)].items()})

    def snapshot(self, call: CommitCall) -> None:
        """The synchronous part of a commit: take what changed since the last one."""
        self._current(call.identity).snapshot(CheckpointId.parse(call.checkpoint_id), last=call.last)

    def upload(self, call: CommitCall) -> dict[str, dict[str, dict[str, str]]]:
        """Make the snapshot durable; task -> factory -> store -> marker."""
        return self._current(call.identity).upload(CheckpointId.parse(call.checkpoint_id))

    def clean_up(self, call: CleanUpCall) -> None:
        """The checkpoint is in the log, with these markers."""
        self._current(call.identity).clean_up(CheckpointId.parse(call.checkpoint_id), call.markers)

    def finish_background(self, call: FinishCall) -> None:
        """The run has ended well: give what runs in the background the time to end."""
        self._current(call.identity).finish(call.timeout_ms / 1000)

    def close(self, identity: Identity) -> None:
        """Close the tasks; the process ends afterwards."""
        with self._lock:
            self._check_incarnation(identity)
        self._leave_epoch(10)

    def beat(self, resident_bytes: int) -> Beat:
        """A sign of life."""
        now = time.monotonic()
        with self._lock:
            running = list(self._running.values())
            batch, processed = self._batch.number, self._processed
            pending = sum(task.pending_bytes for task in self._tasks.values())
        stalled, slowest = max(((a.stalled_seconds(now), a) for a in running), key=lambda s: s[0], default=(0.0, None))
        doing = "" if slowest is None else slowest.processing()
        processed += sum(attempt.attempt.processed for attempt in running)
        return Beat(
            self.container, self.incarnation, resident_bytes, int(stalled * 1000), pending, doing, batch, processed
        )

    def job(self) -> tuple[Topology, RuntimeSettings]:
        """The job of the current epoch."""
        with self._lock:
            if self._package is None:
                raise ContainerLostError("no epoch is open in this container")
            return self._package.topology, self._package.settings

    # Checks.

    def _current(self, identity: Identity) -> ContainerStorage:
        with self._lock:
            self._check(identity)
            if self._storage is None:
                raise ContainerLostError("no epoch is open in this container")
            return self._storage

    def _check_incarnation(self, identity: Identity) -> None:
        if identity.incarnation != self.incarnation:
            raise ContainerLostError(
                f"the call is meant for incarnation {identity.incarnation}, this process is {self.incarnation}"
            )

    def _check(self, identity: Identity) -> None:
        self._check_incarnation(identity)
        if identity.epoch != self._epoch or self._storage is None:
            raise ContainerLostError(f"the call is of epoch {identity.epoch}, this container is in {self._epoch}")

    def _check_attempt(self, call: AttemptCall, number: int) -> TaskInstance:
        self._check(call.identity)
        if call.batch != self._batch:
            raise ContainerLostError(f"an attempt of {call.batch} came during {self._batch}")
        task = self._tasks.get(number)
        if task is None or task.last_ended != call.batch.last_ended:
            known = "not here" if task is None else f"at batch {task.last_ended}"
            expected = call.batch.last_ended
            raise ContainerLostError(f"an attempt expects task {number} at batch {expected}; it is {known}")
        return task


def _exit(reason: str) -> None:
    logger.critical("%s; this container ends itself", reason)
    logging.shutdown()
    os._exit(70)
