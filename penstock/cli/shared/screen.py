"""A job on the whole screen of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.cli.shared.output import fitting
from penstock.dashboard.view import Document

_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_POINTS = 60
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLORS = {"good": "green", "warning": "yellow", "bad": "red", "idle": "white", "plain": "blue"}


def _text(text: str, style: str = "") -> Text:
    """A text whose control characters do nothing to the terminal."""
    return Text(_CONTROLS.sub("\ufffd", text), style=style)


def screen_of(page: Document, width: int) -> RenderableType:
    """The page of a job on a screen of this width. What does not fit at its end is cut."""
    if "error" in page:
        return Panel(_text(page["error"]), title="error", border_style="red")
    verdict = page["verdict"]
    color = _COLORS[verdict["level"]]
    lines = [
        _text(verdict["text"], f"bold {color}"),
        *map(_text, verdict["why"]),
        *(_text(line, "dim") for line in page["next"]),
    ]
    tables = [_table(each, width) for each in page["tables"]]
    return Group(Panel(Group(*lines), title=page["job"], border_style=color), *_rates(page["series"]), *tables)


def _rates(series: dict[str, Any]) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2))
    for what, unit in (("read", "/s read"), ("sent", "/s sent"), ("lag", " behind")):
        for stream, values in series[what].items():
            last = values[-1]
            grid.add_row(_text(stream), bars(values), "" if last is None else f"{last:,.0f}{unit}")
    if grid.row_count:
        yield grid


def bars(values: Sequence[float | None]) -> str:
    """The last values as bars of eight heights, from 0 to the largest.

    Example:
        >>> from penstock.cli.shared.screen import bars
        >>> bars([0, None, 7, 14])
        '\u2581 \u2585\u2588'
    """
    shown = values[-_POINTS:]
    top = max((value for value in shown if value is not None), default=0.0)
    steps = len(_BARS) - 1
    return "".join(" " if v is None else _BARS[round(max(v, 0.0) / top * steps) if top > 0 else 0] for v in shown)


def _table(found: Document, width: int) -> RenderableType:
    shown = fitting(found["columns"], found["rows"], width, found["first_to_go"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(found["title"], style="italic"), title_justify="left")
    for name in (found["columns"][place] for place in shown):
        table.add_column(name, justify="right" if name in found["right"] else "left", overflow="ellipsis", no_wrap=True)
    for row in found["rows"]:
        table.add_row(*(_text(row[place]) for place in shown))
    return table
