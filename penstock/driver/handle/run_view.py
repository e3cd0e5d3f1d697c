"""Views of a running job, and a log of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.wording import counted, size_text

if TYPE_CHECKING:
    from penstock.driver.handle.job import Job
    from penstock.driver.show.progress import BatchProgress

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
