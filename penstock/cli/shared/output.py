"""Output for people (tables) and for programs (JSON)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal

import orjson
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.base.wording import escaped
from penstock.cli.shared.errors import say
from penstock.facts import Facts, Grid

_LONGEST_ID = 40
_LEAST_TEXT = 12
"""The least width that a text is broken to, in columns."""
_GAP = 3
_WIDE = 200
"""The width in columns if neither a terminal nor `COLUMNS` gives one, so that a pipe gets whole values."""


def stdout_console() -> Console:
    """Where facts go. Plain text: nothing in a name or a key is taken for markup."""
    asked = os.environ.get("COLUMNS", "").isdigit()  # rich reads it
    width = None if asked or sys.stdout.isatty() else _WIDE
    return Console(markup=False, highlight=False, emoji=False, width=width)


def stderr_console() -> Console:
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def print_grid(grid: Grid) -> None:
    """A table, or that there is nothing to list. None is shown as `-`. Where there is no room for all columns, those
    that may go are left out. Ids, numbers and times are never broken; longer texts are."""
    console = stdout_console()
    texts = [["-" if cell is None else escaped(str(cell)) for cell in row] for row in grid.rows]
    if grid.title:
        console.print(Text(escaped(grid.title), style="italic"), soft_wrap=True)
    if not texts:
        console.print("none")
        return
    names = grid.headings
    shown = fitting(names, texts, console.width, grid.first_to_go)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place in shown:
        whole = not _may_break(row[place] for row in texts)
        justify: Literal["left", "right"] = "right" if grid.columns[place].right else "left"
        table.add_column(names[place], justify=justify, overflow="fold", no_wrap=whole)
    for row in texts:
        table.add_row(*(row[place] for place in shown))
    least = sum(_least_width(names[place], [row[place] for row in texts]) + _GAP for place in shown)
    console.width = max(console.width, least)  # of what does not fit, the terminal wraps the lines, and nothing is cut
    console.print(table)
    if len(shown) < len(names):
        left_out = ", ".join(name for place, name in enumerate(names) if place not in shown)
        console.print(f"(a wider terminal, or --json, shows: {left_out})", soft_wrap=True)
    if grid.note:
        console.print(escaped(grid.note), soft_wrap=True)


def show(*given: Facts) -> None:
    """Print facts: first the lines, then the tables. Their notes go to standard error."""
    for facts in given:
        if facts.lines:
            print_facts(facts.pairs())
        for note in facts.notes:
            say(note)
        for table in facts.tables:
            print_grid(table.grid())


def print_lines(lines: Iterable[str], notes: Iterable[str]) -> None:
    """Lines for another program, and notes about what they leave out on standard error."""
    for note in notes:
        say(f"note: {note}")
    sys.stdout.writelines(f"{line}\n" for line in lines)


def fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, first_to_go: Sequence[str]) -> list[int]:
    """The numbers of the columns that fit into the width; those of `first_to_go` are left out first, in this order."""
    shown = list(range(len(columns)))
    for name in first_to_go:
        widths = (max(cell_len(text) for text in (columns[place], *(row[place] for row in rows))) for place in shown)
        if sum(widths) + _GAP * len(shown) <= width:
            break
        shown.remove(columns.index(name))
    return shown


def _may_break(cells: Iterable[str]) -> bool:
    """True if a column holds texts: an id, a number or a time is short and has no blanks."""
    return any(" " in cell or len(cell) > _LONGEST_ID for cell in cells)


def _least_width(name: str, cells: Sequence[str]) -> int:
    if _may_break(cells):
        return max(cell_len(name), _LEAST_TEXT)
    return max(cell_len(text) for text in (name, *cells))


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(escaped(name), "-" if value is None else escaped(str(value)))
    stdout_console().print(grid)


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(to_json(value), option=orjson.OPT_INDENT_2).decode() + "\n")


def print_json_line(value: object) -> None:
    """Write the value as JSON in one line, and flush: another program may read it before more follows."""
    sys.stdout.write(orjson.dumps(to_json(value)).decode() + "\n")
    sys.stdout.flush()


def to_json(value: object) -> Any:
    """Plain JSON values. Fields of dataclasses are named as in Spark's progress (`batchId`); keys of maps stay."""
    if is_dataclass(value) and not isinstance(value, type):
        own = (each for each in fields(value) if not each.metadata.get("people"))
        return {_camel(each.name): to_json(getattr(value, each.name)) for each in own}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
