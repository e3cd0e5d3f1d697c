"""What the commands that read a job's state share: restoring to scratch with progress, stores, and their serdes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from penstock.admin.jobs import FoundJob
from penstock.admin.state.version import choose_version
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.shared.errors import say
from penstock.cli.shared.output import stderr_console
from penstock.cli.state.texts import Texts, serde_names
from penstock.errors import ConfigError
from penstock.wording import size_text

if TYPE_CHECKING:
    from penstock.state.reading.reader import StateReader
    from penstock.state.reading.store_version import StoreVersion

SHOWN = 20
"""Rows of a table if no limit is given."""

StoreName = Annotated[str, typer.Argument(metavar="STORE", help="The store.", show_default=False)]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Restore from this backend; the first that can, if none is named."),
]
AppReference = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="Take serdes of your own from `module:object` or `file.py:object`."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", min=0, help=f"At most so many; {SHOWN} in a table, all as JSON, if not given.", show_default=False
    ),
]
AsHex = Annotated[bool, typer.Option("--hex", help="Keys are given as the hex of their bytes.")]


class RestoreView:
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
        """So many bytes more."""
        self._bytes += count
        self._show()

    def __call__(self, store: str, backend: str, task: int) -> None:
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
def reading(found: FoundJob) -> Iterator[tuple[StateReader, RestoreView]]:
    """A reader of the job's state, and what shows its progress."""
    from penstock.state.reading.reader import StateReader
    from penstock.system.registry import open_systems

    systems = open_systems(found.config)
    view = RestoreView()
    try:
        with StateReader(found.config, found.paths, found.objects, systems, view.read) as reader:
            yield reader, view
    finally:
        view.stop()


@contextmanager
def reading_version(
    found: FoundJob, version: str, store: str, backend: str | None
) -> Iterator[tuple[StoreVersion, RestoreView]]:
    """A store as of a version, nothing restored yet.

    Raises:
        ConfigError, NotFoundError, CorruptError: as `choose_version` and StoreVersion.
    """
    from penstock.state.reading.store_version import StoreVersion

    log = CheckpointLog(found.objects, found.paths)
    record = choose_version(log, found, version)
    with reading(found) as (reader, view), StoreVersion(reader, log, record, store, backend, view) as opened:
        yield opened, view


def store_texts(record: CheckpointRecord, store: str, app: str | None) -> tuple[Texts, Texts]:
    """How keys and values of a store are shown: by the serdes the checkpoint names, or those of the application.

    Raises:
        NotFoundError: the checkpoint has no such store, or the application's file is not there.
        ConfigError: the application cannot be loaded, or has not this store with these serdes.
    """
    from penstock.state.reading.reader import check_store

    check_store(record, store)
    key, value = serde_names(record.stores[store])
    if app is None:
        return Texts("key", key), Texts("value", value)
    from penstock.cli.shared.application import load_application

    specs = {spec.name: spec for spec in load_application(app).app.graph().stores}
    if store not in specs:
        raise ConfigError(f"`{app}` declares no store `{store}`; it has: {', '.join(specs) or 'none'}")
    own = specs[store]
    if (own.key_serde.name, own.value_serde.name) != (key, value):
        raise ConfigError(
            f"store `{store}` was written with the serdes `{key}` and `{value}` (checkpoint {record.id}); `{app}` "
            f"declares `{own.key_serde.name}` and `{own.value_serde.name}`"
        )
    return Texts("key", key, own.key_serde), Texts("value", value, own.value_serde)


def print_line(fields: Mapping[str, Any]) -> None:
    """One JSON object, on a separate line."""
    sys.stdout.write(orjson.dumps(fields).decode() + "\n")


def say_more(limit: int) -> None:
    """Say that a table was cut."""
    say(f"there are more than these {limit}: --limit N shows N, --json all")


def say_troubles(*texts: Texts) -> None:
    """Say once why something was shown as hex."""
    for each in texts:
        if each.trouble is not None:
            say(each.trouble)
