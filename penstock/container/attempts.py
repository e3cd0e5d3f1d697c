"""The attempts of a container in one epoch: the admitted run, the running attempts, and the right to touch them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from penstock.batch.batch import NO_BATCH, Batch
from penstock.container.shared import Service
from penstock.errors import ContainerLostError
from penstock.host.log_lines import Work, at_work
from penstock.job.shown import MOST_KEYS, TaskWork, most_work
from penstock.runtime.messages.incoming import DiscardedAttemptError
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.meters import HotKeys
from penstock.runtime.stage.attempt import PacketAttempt
from penstock.runtime.stage.task_instance import TaskAttempt, TaskInstance
from penstock.wire.protocol import AttemptCall

_WINDOW_S = 30.0
"""Keys are counted over one to two of these."""
_LOOK_S = 2.0


class RunningAttempt:
    """An attempt and the right to touch it. Whoever holds the lock may; once cancelled, nobody may any more."""

    def __init__(self, attempt: TaskAttempt, batch: int) -> None:
        self.attempt = attempt
        self.batch = batch
        self.lock = threading.Lock()
        self.cancelled = False
        self._busy_since: float | None = None
        self._seen: object = None

    @contextmanager
    def touch(self) -> Iterator[TaskAttempt]:
        """Raises DiscardedAttemptError if the attempt was cancelled meanwhile."""
        with self.lock:
            if self.cancelled:
                raise DiscardedAttemptError("the attempt was cancelled: a newer one of its task has begun")
            self._busy_since = time.monotonic()
            try:
                yield self.attempt
            finally:
                self._busy_since = None

    def stalled_seconds(self, now: float) -> float:
        """Seconds that the attempt has been processing one message. Accurate only if called from time to time.

        Without the lock: its holder may be stuck.
        """
        since, step = self._busy_since, self.attempt.step
        if since is None or (step is not None and not step.limit.is_general):
            return 0.0
        seen = self.attempt.progress()
        if seen != self._seen:
            self._seen = seen
            self._busy_since = now
            return 0.0
        return now - since

    @property
    def is_busy(self) -> bool:
        return self._busy_since is not None

    def processing(self) -> str:
        """The message that it processes, in words; empty between messages. Without the lock, as `stalled_seconds`."""
        if self._busy_since is None:
            return ""
        return f"{self.attempt.describe()} in task {self.attempt.task}, stage {self.attempt.stage}"

    def overdue(self) -> str:
        """A step without a message that exceeds its time limit, in words; empty if there is none. Without the lock, as
        `stalled_seconds`."""
        step = self.attempt.step
        late = None if step is None or self._busy_since is None else step.late(self.attempt.stage, self.attempt.task)
        return "" if late is None else str(late)


@dataclass(frozen=True, slots=True)
class Activity:
    """The present work of a container's attempts."""

    batch: int
    processed: Mapping[int, int]
    stalled_ms: int = 0
    processing: str = ""
    overdue: str = ""
    """A step of an attempt that exceeds its time limit, in words."""
    work: Sequence[TaskWork] = ()
    """See `Beat.work`."""


class KeyCounts:
    """The keys with the most messages of each stage in a container. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: dict[int, HotKeys] = {}
        self._rotated = self._looked = time.monotonic()
        self._top: list[tuple[int, bytes, int]] = []
        self._all: dict[int, int] = {}

    def of_stage(self, stage: int) -> HotKeys:
        with self._lock:
            return self._stages.setdefault(stage, HotKeys())

    def top(self) -> tuple[list[tuple[int, bytes, int]], dict[int, int]]:
        """See `Beat.keys` and `Beat.keyed`, as of a few seconds ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._rotated >= _WINDOW_S:
                self._rotated = now
                for each in self._stages.values():
                    each.rotate()
            if now - self._looked >= _LOOK_S:
                self._looked = now
                found = {stage: each.top(MOST_KEYS) for stage, each in self._stages.items()}
                self._top = [(stage, key, count) for stage, (keys, _) in found.items() for key, count in keys]
                self._all = {stage: total for stage, (_, total) in found.items()}
            return self._top, self._all


class Attempts(Service):
    """The attempts of the tasks of one epoch. Thread-safe: calls come from Flight's threads."""

    name = "attempts"

    def __init__(self, epoch: int, tasks: Mapping[int, TaskInstance]) -> None:
        self._epoch = epoch
        self._tasks = dict(tasks)
        self._lock = threading.Lock()
        self._running: dict[tuple[int, int], RunningAttempt] = {}
        """(stage, task) → its attempt."""
        self._batch = NO_BATCH
        self._processed = Counter[int]()
        """Stage → messages processed by attempts that have finished."""
        self._ended: dict[tuple[int, int], TaskWork] = {}
        """(Stage, task) → the work of its attempt that has finished."""
        self.keys = KeyCounts()
        self._stopped = False
        self._alone = threading.RLock()
        """Held while an attempt of a batch with suspects works: what ends the process then is its doing."""

    def start_run(self, batch: Batch) -> None:
        with self._lock:
            self._check()
            self._batch = batch
            self._processed.clear()
            self._ended.clear()
            running = list(self._running.values())
        for attempt in running:
            self._discard(attempt)  # it stays listed until then, so that a beat tells how long this takes
            with self._lock:
                self._unlist(attempt)
        for instance in self._tasks.values():
            instance.drop_attempts()

    def begin(self, call: AttemptCall, number: int, token: str) -> RunningAttempt:
        """Begin the attempt of a task. An older attempt of this stage and task is cancelled first, and joined. `token`:
        other tasks may have attempts of the same one, but no other attempt of this task."""
        place = (call.stage, number)
        with self._lock:
            task = self._check_attempt(call, number)
            older = self._running.get(place)
        if older is not None:
            self._discard(older)  # it stays listed until then, so that a beat tells how long this takes
        running = RunningAttempt(task.begin_attempt(call.stage, token, call.batch), call.batch.number)
        if isinstance(running.attempt, PacketAttempt):
            running.attempt.hot_keys = self.keys.of_stage(call.stage)
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

    def process(self, running: RunningAttempt, packets: Iterable[Packet]) -> list[Packet]:
        """Feed packets to an attempt. Returns the packets that are ready to be sent."""
        with self._turn(running), at_work(self._work(running)), running.touch() as attempt:
            return [ready for packet in packets for ready in attempt.accept(packet)]

    def finish(self, running: RunningAttempt, together: JointOutput | None = None) -> list[Packet]:
        """See `Attempt.finish`."""
        with self._turn(running), at_work(self._work(running)), running.touch() as attempt:
            rest = list(attempt.finish(together))
            with self._lock:
                if not self._unlist(running):
                    raise DiscardedAttemptError("the attempt was cancelled")
                self._processed[attempt.stage] += attempt.processed
                self._ended[attempt.stage, attempt.task] = _work_of(attempt, ended=True)
            running.cancelled = True  # it belongs to the task from here on
            self._tasks[attempt.task].finish_attempt(attempt)
        return rest

    def _turn(self, running: RunningAttempt) -> AbstractContextManager[object]:
        return self._alone if running.attempt.batch.watched else nullcontext()

    def _work(self, running: RunningAttempt) -> Work:
        return Work(self._epoch, running.batch, running.attempt.task)

    def abandon(self, running: RunningAttempt) -> None:
        """The attempt's stream broke, or its input was not complete: discard it and all it touched."""
        with self._lock:
            self._unlist(running)
        self._discard(running)

    def activity(self) -> Activity:
        now = time.monotonic()
        with self._lock:
            running = list(self._running.values())
            batch, processed, work = self._batch.number, self._processed.copy(), dict(self._ended)
        for each in running:
            processed[each.attempt.stage] += each.attempt.processed
            work[each.attempt.stage, each.attempt.task] = _work_of(each.attempt, ended=False)
        busiest = most_work(work.values())
        if not running:
            return Activity(batch, processed, work=busiest)
        stalled, slowest = max(
            ((each.stalled_seconds(now), each) for each in running), key=lambda found: (found[0], found[1].is_busy)
        )
        overdue = next(filter(None, (each.overdue() for each in running)), "")
        return Activity(batch, processed, int(stalled * 1000), slowest.processing(), overdue, busiest)

    def stop(self) -> None:
        """Cancel and join every attempt, and admit no more: the epoch ends."""
        with self._lock:
            self._stopped = True
            running, self._running = self._running, {}
        for attempt in running.values():
            self._discard(attempt)

    def status(self) -> str:
        return self.activity().processing

    def _unlist(self, running: RunningAttempt) -> bool:
        place = (running.attempt.stage, running.attempt.task)
        listed = self._running.get(place) is running
        if listed:
            del self._running[place]
        return listed

    def _discard(self, running: RunningAttempt) -> None:
        with running.lock:
            if running.cancelled:
                return
            running.cancelled = True
            self._tasks[running.attempt.task].discard_attempt(running.attempt)

    def _check(self) -> None:
        if self._stopped:
            raise ContainerLostError(f"this container has left epoch {self._epoch}")

    def _check_attempt(self, call: AttemptCall, number: int) -> TaskInstance:
        self._check()
        if call.batch != self._batch:
            raise ContainerLostError(f"an attempt of {call.batch} came during {self._batch}")
        task = self._tasks.get(number)
        if task is None or task.last_ended != call.batch.last_ended:
            known = "not here" if task is None else f"at batch {task.last_ended}"
            expected = call.batch.last_ended
            raise ContainerLostError(f"an attempt expects task {number} at batch {expected}; it is {known}")
        return task


def _work_of(attempt: TaskAttempt, *, ended: bool) -> TaskWork:
    operator = "" if ended else attempt.operator
    return TaskWork(attempt.stage, attempt.task, attempt.processed, attempt.process_ns // 1_000_000, operator)
