"""The program that runs jobs: its signals and its end, views of its running job, and a log of them.

The first SIGTERM or Ctrl-C ends the jobs with a last commit, the second ends them at once. A program that ends while
its jobs or queries still run stops them while Python can do all that this needs.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from penstock.base.wording import counted, size_text

if TYPE_CHECKING:
    from penstock.driver.job import Job
    from penstock.driver.show.progress import BatchProgress

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOGETHER_SECONDS = 0.5
_AT_ONCE = 2
_NOT_CHOSEN = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN)


class StoppableJob(Protocol):
    """A job as signals see it."""

    name: str

    @property
    def last_checkpoint(self) -> str | None:
        """The id of the last complete checkpoint; None before the first."""

    def stop(self, *, wait: bool = True) -> None:
        """Stop after the current batch; a second call ends the job at once."""


@dataclass(slots=True)
class JobEnd:
    """The end of a job. `awaited`: the program's main thread waits for it."""

    done: threading.Event = field(default_factory=threading.Event)
    awaited: bool = False

    def look(self) -> threading.Event:
        """The event, for callers that wait for the end by a method of the job."""
        if threading.current_thread() is threading.main_thread():
            self.awaited = True
        return self.done


class StopCount:
    """Counts requests to stop. Signals within half a second are one: `timeout` and some parents of a process group
    send theirs to the process and to its group."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._last = float("-inf")

    def signalled(self) -> bool:
        """Count a signal. Returns False if it belongs to the one before."""
        now = self._clock()
        new = now - self._last > _TOGETHER_SECONDS
        self._last = now
        self.count += new
        return new


def former_handlers() -> dict[signal.Signals, Any] | None:
    """The present handlers of the signals. None if this is not the main thread, or the program has set handlers. Ask
    before Spark's start, which installs a handler for SIGINT.

    A signal may be ignored, as SIGINT is in a background process of a shell script. It stays ignored, and the other one
    stops the jobs.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    found: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    if _handlers.on_signal in found.values():
        return _handlers.former
    return found if all(handler in _NOT_CHOSEN for handler in found.values()) else None


def stop_on_signals(job: StoppableJob, ending: JobEnd, former: dict[signal.Signals, Any]) -> None:
    """Stop the job on the signals from now on. Main thread only."""
    _handlers.add(job, ending, former)


def count_end_of_program() -> None:
    """Count the end of the program as the first request to stop: the next signal is the second one."""
    _handlers.count_request()


def pass_on(number: int) -> None:
    """Pass on a signal that came to the process which has started this one. A signal to the whole process group comes
    here directly as well, and perhaps earlier: a signal that is passed on never counts as a second request to stop."""
    if not _handlers.stops:
        os.kill(os.getpid(), number)


class _Handlers:
    """The reaction of this process to a signal, for all its jobs. The handler only hands the signal to a thread: a
    stopping job may need a lock that the interrupted main thread holds."""

    def __init__(self) -> None:
        self.former: dict[signal.Signals, Any] = {}
        self._jobs: list[tuple[StoppableJob, JobEnd]] = []
        self._signals: SimpleQueue[tuple[signal.Signals, int]] = SimpleQueue()
        self._stops = StopCount()
        self._thread: threading.Thread | None = None

    def add(self, job: StoppableJob, ending: JobEnd, former: dict[signal.Signals, Any]) -> None:
        self.former = dict(former)
        active = self._active()
        if not active:
            self._stops = StopCount()
        self._jobs = [*active, (job, ending)]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-signals", daemon=True)
            self._thread.start()
        for number, handler in former.items():
            signal.signal(number, handler if handler is signal.SIG_IGN else self.on_signal)

    def count_request(self) -> None:
        self._stops.count = max(1, self._stops.count)

    @property
    def stops(self) -> bool:
        """True if jobs run that a signal, or the end of the program, has asked to stop."""
        return self._stops.count > 0 and bool(self._active())

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """In the main thread."""
        if self._active() and self._stops.count < _AT_ONCE:
            if self._stops.signalled():
                self._signals.put((signal.Signals(number), self._stops.count))
            return
        for each, handler in self.former.items():
            signal.signal(each, handler)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _active(self) -> list[tuple[StoppableJob, JobEnd]]:
        return [(job, ending) for job, ending in self._jobs if not ending.done.is_set()]

    def _run(self) -> None:
        while True:
            number, count = self._signals.get()
            active = self._active()
            for job, _ in active:
                if count < _AT_ONCE:
                    logger.info("%s: job %s stops after the current batch, with a last commit", number.name, job.name)
                else:
                    logger.warning("%s: job %s stops at once, as of %s", number.name, job.name, job.last_checkpoint)
                job.stop(wait=False)
            if count < _AT_ONCE:
                threading.Thread(target=_leave, args=(active, number), name="penstock-leave", daemon=True).start()


def _leave(stopped: list[tuple[StoppableJob, JobEnd]], number: signal.Signals) -> None:
    """Let a program that waits for its jobs see their end; any other continues as if the signal came now."""
    for _, ending in stopped:
        ending.done.wait()
    main = threading.main_thread().ident
    if stopped and main is not None and not any(ending.awaited for _, ending in stopped):
        signal.pthread_kill(main, number)  # which also interrupts what the main thread waits in


_handlers = _Handlers()


_PATIENCE_SECONDS = 120.0
"""Time limit of an orderly end, and then of an end at once."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningWork:
    """A job or a query that the program's end must stop."""

    name: str
    ended: threading.Event
    stop: Callable[[], None]
    """Orderly. Called in a thread, like `stop_at_once`: neither need return."""
    stop_at_once: Callable[[], None]
    report: Callable[[], None] = lambda: None
    """Called last, even if it had ended before: the program will not ask again for the outcome."""


def stop_with_program(running: RunningWork) -> None:
    """Stop it when the main thread ends, if it still runs then."""
    for each in list(_running):
        if each.ended.is_set():
            _running.pop(each, None)
    _running[running] = None


def _stop_all() -> None:
    running = list(_running)
    with suppress(BaseException):  # what the handler of a signal raises: that takes too long
        _await(running, lambda each: each.stop)
    with suppress(BaseException):
        _await(running, lambda each: each.stop_at_once)
    for each in running:
        if not each.ended.is_set():
            logger.warning("%s has not ended, and the program does not wait any longer", each.name)
        each.report()


def _await(running: list[RunningWork], way: Callable[[RunningWork], Callable[[], None]]) -> None:
    left = [each for each in running if not each.ended.is_set()]
    for each in left:
        threading.Thread(target=way(each), name="program-end", daemon=True).start()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for each in left:
        each.ended.wait(max(0.0, deadline - time.monotonic()))


_running: dict[RunningWork, None] = {}
os.register_at_fork(after_in_child=_running.clear)  # they are the parent's
# A function of `atexit` would come too late: no pool of threads takes anything any more when that is called.
_at_end: Any = threading._register_atexit  # type: ignore[attr-defined]  # noqa: SLF001
_at_end(_stop_all)


PROGRESS_LOGGER = "penstock.progress"
_LOG_EVERY_S = 5.0
_LOOK_EVERY_S = 0.5
_SHOW_AFTER_S = 3.0
_RATE_OVER_S = 10.0
_RATE_FROM_S = 1.0


@dataclass(frozen=True, slots=True)
class RunView:
    """A job at one moment. `total` is None while it is unknown, and always in a run without an end."""

    phase: str
    done: int
    total: int | None
    rate: float | None
    batch: int | None
    checkpoint: str | None
    restored_bytes: int
    behind: str = ""
    """Messages in the inputs that no batch has read, in words, where `total` is not known."""
    running: BatchProgress | None = None
    """The running batch, once it has run for a while."""
    waits_for: str = ""
    """The wait of that batch if the run drains; the system that the run waits for, if one is away."""
    dead_letters: int = 0
    """Since the run began."""
    bootstrap: str = ""

    @property
    def phase_text(self) -> str:
        if self.bootstrap:
            return f"{self.phase} ({self.bootstrap})"
        if self.waits_for:
            return f"{self.phase} (waits for {self.waits_for})"
        return f"{self.phase} ({size_text(self.restored_bytes)})" if self.phase == "restoring" else self.phase

    @property
    def messages_text(self) -> str:
        dead = f", {counted(self.dead_letters, 'dead letter')}" if self.dead_letters else ""
        if self.total is not None:
            return f"{self.done:,} of {counted(self.total, 'message')}{dead}"
        return counted(self.done, "message") + (f" ({self.behind} behind)" if self.behind else "") + dead

    @property
    def batch_text(self) -> str:
        """The running batch and its progress, or the last one that ended; empty before the first."""
        if self.running is not None:
            return str(self.running)
        return "" if self.batch is None else f"batch {self.batch}"

    @property
    def details(self) -> tuple[str, str, str]:
        """Rate, batch and checkpoint; empty before they exist."""
        return (
            "" if self.rate is None else f"{self.rate:,.0f}/s",
            self.batch_text,
            "" if self.checkpoint is None else f"checkpoint {self.checkpoint}",
        )

    def __str__(self) -> str:
        return ", ".join(text for text in (self.phase_text, self.messages_text, *self.details) if text)


class RecentRate:
    """Messages per second of real time: over the last ten seconds, and over whole batches if they take longer."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def look(self, now: float, read: int, *, busy: bool) -> float | None:
        """The rate now; None while nothing has been read, in the first second, which says little, and while the first
        batch runs after a time without messages: nobody knows yet.

        Args:
            now: on a monotonic clock, in seconds.
            read: the messages of all batches that have ended.
            busy: True if a batch with messages runs. They count once it has ended, so the time until then does too.
        """
        points = self._points
        if not read and not busy:
            points.clear()  # nothing has been read yet: the time counts from the first batch on
        if not points or not busy or read != points[-1][1]:
            points.append((now, read))
        while len(points) > 2 and now - points[1][0] >= _RATE_OVER_S:
            points.popleft()
        (began, before), (ended, after) = points[0], points[-1]
        if not after or ended - began < _RATE_FROM_S or (busy and after == before):
            return None
        return (after - before) / (ended - began)


class RunObserver:
    """Takes views of a job through its handle. Used by one thread."""

    def __init__(self, job: Job, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._total: int | None = None
        self._running: tuple[int, float] = (-1, 0.0)
        self._rate = RecentRate()

    def look(self) -> RunView:
        phase, remaining, progress = self._job.phase, self._job.remaining_messages, self._job.progress
        read = 0 if progress is None else progress.total_input_rows
        if remaining is not None:
            # The two may be of neighbouring batches, and a rewind reads again: both only make the sum too large.
            self._total = min(read + remaining, read + remaining if self._total is None else self._total)
        done = read if self._total is None or remaining is None else self._total - remaining
        running_now = self._job.running_batch
        busy = running_now is not None and running_now.messages > 0
        recent = self._rate.look(self._clock(), read, busy=busy)
        if recent is None and progress is not None and not busy:
            recent = progress.processed_rows_per_second or None
        running = self._long_running(running_now)
        drain = None if running is None or phase != "draining" else self._job.drain_progress
        outage = self._job.outage
        waits_for = "" if drain is None else drain.waits_for
        return RunView(
            phase=phase,
            done=max(done, 0),
            total=self._total,
            rate=recent,
            batch=None if progress is None else progress.batch_id,
            checkpoint=self._job.last_checkpoint,
            restored_bytes=self._job.restored_bytes,
            behind="" if remaining is not None or progress is None else progress.behind,
            running=running,
            waits_for=waits_for if outage is None else f"a system: {outage.reason.partition(': ')[0]}",
            dead_letters=0 if progress is None else progress.total_dead_letters,
            bootstrap=str(self._job.bootstrap_progress or ""),
        )

    def _long_running(self, running: BatchProgress | None) -> BatchProgress | None:
        if running is None:
            return None
        if running.batch != self._running[0]:
            self._running = (running.batch, self._clock())
        return running if self._clock() - self._running[1] >= _SHOW_AFTER_S else None


class ViewLog:
    """Logs a job at INFO: when its phase changes, and every few seconds while there is news."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._shown: RunView | None = None
        self._shown_at = clock()

    def show(self, view: RunView) -> None:
        new_phase = self._shown is None or view.phase != self._shown.phase
        due = self._clock() - self._shown_at >= _LOG_EVERY_S and view != self._shown
        if new_phase or due:
            self._shown, self._shown_at = view, self._clock()
            self._log.info("%s", view)


def log_progress(job: Job) -> None:
    log = logging.getLogger(PROGRESS_LOGGER)
    log.info("job %s started, run %s; the output of its tasks is in %s", job.name, job.run_id, job.log_directory)

    def run() -> None:
        observer, views = RunObserver(job), ViewLog(log)
        while True:
            ended = job.ending.done.wait(_LOOK_EVERY_S)
            views.show(observer.look())
            if ended:
                return

    threading.Thread(target=run, name=f"progress-{job.name}", daemon=True).start()
