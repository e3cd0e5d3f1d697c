"""Shared by the commands that read a job's state: the progress of a restore, and the texts of a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
from rich.progress import Progress, SpinnerColumn, TextColumn

from penstock.admin.state.reading import Watcher
from penstock.admin.state.serdes import Texts, store_serdes
from penstock.base.wording import size_text
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import say, with_options
from penstock.cli.shared.output import stderr_console


class RestoreView(Watcher):
    """Shows which backend of which store was restored, and how many bytes were read; nothing without a terminal."""

    def __init__(self) -> None:
        console = stderr_console()
        self._progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
        self._task = self._progress.add_task("restoring to scratch")
        self._bytes = 0
        self._last = ""
        self._shown = console.is_interactive
        if self._shown:
            self._progress.start()

    def read(self, count: int) -> None:
        self._bytes += count
        self._show()

    def restored(self, store: str, backend: str, task: int) -> None:
        self._last = f": {store} from {backend}, task {task} done"
        self._show()

    def stop(self) -> None:
        """Remove it, before what was restored is printed. Idempotent."""
        if self._shown:
            self._shown = False
            self._progress.stop()

    def _show(self) -> None:
        self._progress.update(self._task, description=f"restoring to scratch, {size_text(self._bytes)}{self._last}")


@contextmanager
def restoring() -> Iterator[RestoreView]:
    view = RestoreView()
    try:
        yield view
    finally:
        view.stop()


def store_texts(record: CheckpointRecord, store: str, app: str | None) -> tuple[Texts, Texts]:
    """The texts of a store's keys and values, by the serdes that the checkpoint names or those of the application.

    Raises:
        NotFoundError: the checkpoint has no such store, or the application's file is not there.
        ConfigError: the application cannot be loaded, or has not this store with these serdes.
    """
    loaded = None if app is None else load_application(app).app
    found = store_serdes(record, store, loaded, app)
    return Texts("key", found.key_name, found.key), Texts("value", found.value_name, found.value)


def print_line(fields: Mapping[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(fields).decode() + "\n")


def say_more(limit: int) -> None:
    say(f"there are more than {limit}: --limit N shows N, --json all")


def say_troubles(*texts: Texts) -> None:
    """Say once why something was shown as hex."""
    for each in texts:
        if each.trouble is not None:
            say(with_options(each.trouble))
