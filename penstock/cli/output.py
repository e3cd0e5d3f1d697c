"""Output for people (tables) and for programs (JSON)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from penstock.engine.run_view import size_text as size_text

_WIDE = 200
"""Columns where there is no terminal to ask, so that a pipe gets whole values."""


def stdout_console() -> Console:
    """Where facts go. Plain text: nothing in a name or a key is taken for markup."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(markup=False, highlight=False, emoji=False, width=width)


def stderr_console() -> Console:
    """Where progress goes."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], *, right: str = "") -> None:
    """A table; the columns named in `right` (separated by blanks) hold numbers. None is shown as `-`."""
    numbers = set(right.split())
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    stdout_console().print(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, "-" if value is None else str(value))
    stdout_console().print(grid)


def print_json(value: object) -> None:
    """The value as one indented JSON document."""
    sys.stdout.write(orjson.dumps(to_json(value), option=orjson.OPT_INDENT_2).decode() + "\n")


def to_json(value: object) -> Any:
    """Plain JSON values. Fields of dataclasses are named as in Spark's progress (`batchId`); keys of maps stay."""
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(field.name): to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def utc_text(epoch_ms: int) -> str:
    """A time for people, in UTC; the number itself if no calendar holds it."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)
    except OverflowError:
        return f"{epoch_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
