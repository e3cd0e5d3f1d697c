"""What people see of a running job: a progress bar on a terminal, log lines elsewhere. All of it on standard error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from penstock.cli.output import size_text, stderr_console

if TYPE_CHECKING:
    from penstock.engine.job import Job

_LOG_EVERY_S = 5.0
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True)
class RunView:
    """A job at one moment. `total` is None while it is unknown, and for ever in a run without an end."""

    phase: str
    done: int
    total: int | None
    rate: float | None
    batch: int | None
    checkpoint: str | None
    restored_bytes: int

    @property
    def phase_text(self) -> str:
        """The phase, and how far a restore is."""
        return f"{self.phase} ({size_text(self.restored_bytes)})" if self.phase == "restoring" else self.phase

    @property
    def messages_text(self) -> str:
        """Messages done, of how many."""
        return f"{self.done:,} messages" if self.total is None else f"{self.done:,} of {self.total:,} messages"

    @property
    def details(self) -> tuple[str, str, str]:
        """Rate, batch and checkpoint; empty where there is none yet."""
        return (
            "" if self.rate is None else f"{self.rate:,.0f}/s",
            "" if self.batch is None else f"batch {self.batch}",
            "" if self.checkpoint is None else f"checkpoint {self.checkpoint}",
        )

    def __str__(self) -> str:
        return ", ".join(text for text in (self.phase_text, self.messages_text, *self.details) if text)


class RunObserver:
    """Looks at a job from its handle. Used by one thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._total: int | None = None

    def look(self) -> RunView:
        """The job now."""
        phase, remaining, progress = self._job.phase, self._job.remaining_messages, self._job.progress
        read = 0 if progress is None else progress.total_input_rows
        if remaining is not None:
            # The two may be of neighbouring batches, and a rewind reads again: both only make the sum too large.
            self._total = min(read + remaining, read + remaining if self._total is None else self._total)
        done = read if self._total is None or remaining is None else self._total - remaining
        return RunView(
            phase=phase,
            done=max(done, 0),
            total=self._total,
            rate=None if progress is None else progress.processed_rows_per_second,
            batch=None if progress is None else progress.batch_id,
            checkpoint=self._job.last_checkpoint,
            restored_bytes=self._job.restored_bytes,
        )


class RunDisplay(Protocol):
    """Shows a run, and what Penstock logs meanwhile."""

    def show(self, view: RunView) -> None:
        """Called several times a second."""

    def say(self, text: str) -> None:
        """One sentence that must not be missed."""

    def close(self) -> None:
        """Leave the last state visible. Idempotent."""


def open_display() -> RunDisplay:
    """The display that fits standard error."""
    return TerminalDisplay() if stderr_console().is_terminal else LogDisplay()


class TerminalDisplay:
    """One line that is drawn again and again; log lines scroll above it."""

    def __init__(self) -> None:
        console = stderr_console()
        self._remove_handler = _log_to(
            RichHandler(console=console, show_path=False, markup=False, rich_tracebacks=False)
        )
        fields = ("phase", "messages", "rate", "batch", "checkpoint")
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in fields]
        self._bar = Progress(SpinnerColumn(), columns[0], BarColumn(bar_width=24), *columns[1:], console=console)
        self._task: TaskID = self._bar.add_task("", total=None, phase="", messages="", rate="", batch="", checkpoint="")
        self._bar.start()

    def show(self, view: RunView) -> None:
        """Draw the view."""
        rate, batch, checkpoint = view.details
        self._bar.update(
            self._task,
            total=view.total,
            completed=view.done,
            phase=view.phase_text,
            messages=view.messages_text,
            rate=rate,
            batch=batch,
            checkpoint=checkpoint,
        )

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text)

    def close(self) -> None:
        """The bar stays as it was last."""
        self._bar.stop()
        self._remove_handler()


class LogDisplay:
    """A log line every few seconds while there is something new to say, and when the phase changes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        handler = logging.StreamHandler()
        handler.setFormatter(_utc_formatter())
        self._remove_handler = _log_to(handler)
        self._logger = logging.getLogger("penstock.run")
        self._clock = clock
        self._shown: RunView | None = None
        self._shown_at = clock()

    def show(self, view: RunView) -> None:
        """Log the view if it is time to."""
        new_phase = self._shown is None or view.phase != self._shown.phase
        due = self._clock() - self._shown_at >= _LOG_EVERY_S and view != self._shown
        if new_phase or due:
            self._shown, self._shown_at = view, self._clock()
            self._logger.info("%s", view)

    def say(self, text: str) -> None:
        """Log the sentence."""
        self._logger.info("%s", text)

    def close(self) -> None:
        """Nothing more is logged."""
        self._remove_handler()


def _utc_formatter() -> logging.Formatter:
    formatter = logging.Formatter(_LOG_FORMAT, "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    return formatter


def _log_to(handler: logging.Handler) -> Callable[[], None]:
    """Send what Penstock logs to the handler; returns what undoes it."""
    logger = logging.getLogger("penstock")
    before, propagated = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated

    return undo
