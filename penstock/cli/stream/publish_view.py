"""Publishing with a progress bar on a terminal, and log lines elsewhere."""

from __future__ import annotations

import time

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.admin.stream.names import FoundStream
from penstock.admin.stream.publish import Published, PublishOptions, publish
from penstock.cli.shared.errors import say
from penstock.cli.shared.output import stderr_console
from penstock.wording import counted, size_text

_LOG_EVERY_S = 5.0


class _Rate:
    """Says how much was done, and how fast."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def text(self, messages: int, size: int) -> str:
        rate = messages / max(time.monotonic() - self._began, 0.001)
        return f"{counted(messages, 'message')}, {size_text(size)}, {rate:,.0f}/s"


def publish_with_progress(found: FoundStream, file: str, options: PublishOptions) -> str:
    """Publish the file, telling the progress to standard error; returns the sentence that says what was done."""
    rate = _Rate()
    console = stderr_console()
    if console.is_terminal:
        done = _on_terminal(found, file, options, rate)
    else:
        done = _with_log_lines(found, file, options, rate)
    return f"published to `{found.stream}`: {rate.text(done.messages, done.bytes)}"


def _on_terminal(found: FoundStream, file: str, options: PublishOptions, rate: _Rate) -> Published:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as bar:
        shown = bar.add_task(f"publishing to {found.stream}")

        def progress(messages: int, size: int) -> None:
            bar.update(shown, description=f"publishing to {found.stream}: {rate.text(messages, size)}")

        return publish(found.system, found.stream.stream, file, options, progress)


def _with_log_lines(found: FoundStream, file: str, options: PublishOptions, rate: _Rate) -> Published:
    told = time.monotonic()

    def progress(messages: int, size: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _LOG_EVERY_S:
            told = time.monotonic()
            say(f"publishing to {found.stream}: {rate.text(messages, size)}")

    return publish(found.system, found.stream.stream, file, options, progress)
