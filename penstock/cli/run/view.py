"""The view of a running job: a progress bar on a terminal, log lines elsewhere. All of it on standard error."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from penstock.base.secrets import without_secrets
from penstock.cli.shared.errors import with_options
from penstock.cli.shared.output import stderr_console
from penstock.config.settings import LogFormat
from penstock.driver.handle.run_view import PROGRESS_LOGGER, RunObserver, RunView, ViewLog
from penstock.host.log_lines import LineFormatter

__all__ = ["LogDisplay", "RunDisplay", "RunObserver", "TerminalDisplay", "open_display"]


class RunDisplay(Protocol):
    """Shows a run, and what Penstock logs meanwhile."""

    def show(self, view: RunView) -> None:
        """Called several times a second."""

    def say(self, text: str) -> None:
        """One sentence that must not be missed."""

    def close(self) -> None:
        """Leave the last state visible. Idempotent."""


def open_display(form: LogFormat = "text", job: str = "") -> RunDisplay:
    """The display that fits standard error. `job` is for lines of JSON."""
    draws = form == "text" and stderr_console().is_terminal and _in_foreground()
    return TerminalDisplay() if draws else LogDisplay(form, job)


def _in_foreground() -> bool:
    """False for a job that a shell runs with `&`: what it drew would be over the prompt."""
    with suppress(OSError, AttributeError):  # standard error is not the terminal of a session, or there are none here
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True


class TerminalDisplay:
    """One line that is drawn again and again; log lines scroll above it."""

    def __init__(self) -> None:
        console = stderr_console()
        handler = RichHandler(console=console, show_path=False, markup=False, rich_tracebacks=False)
        handler.setFormatter(_WithOptions("%(message)s"))
        self._remove_handler = _log_to(handler)
        fields = ("phase", "messages", "rate", "batch", "checkpoint")
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in fields]
        self._bar = Progress(SpinnerColumn(), columns[0], BarColumn(bar_width=24), *columns[1:], console=console)
        empty: dict[str, Any] = dict.fromkeys(fields, "") | {"phase": "starting Spark"}
        self._task: TaskID = self._bar.add_task("", total=None, **empty)
        self._bar.start()

    def show(self, view: RunView) -> None:
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
        self._bar.console.print(text)

    def close(self) -> None:
        self._bar.stop()
        self._remove_handler()


class LogDisplay:
    """A log line every few seconds while there is something new to say, and when the phase changes."""

    def __init__(self, form: LogFormat = "text", job: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter(form, job, shown=with_options))
        self._remove_handler = _log_to(handler)
        self._logger = logging.getLogger("penstock.run")
        self._log = ViewLog(self._logger, clock)

    def show(self, view: RunView) -> None:
        self._log.show(view)

    def say(self, text: str) -> None:
        self._logger.info("%s", text)

    def close(self) -> None:
        self._remove_handler()


class _WithOptions(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(with_options(super().format(record)))


def _log_to(handler: logging.Handler) -> Callable[[], None]:
    """Send Penstock's log to the handler. Returns a function that undoes it."""
    logger = logging.getLogger("penstock")
    before, propagated = logger.level, logger.propagate
    handler.addFilter(lambda record: record.name != PROGRESS_LOGGER)  # the display says the same
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated

    return undo
