"""Facts and plots in a notebook, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from penstock.facts import Facts, Grid

ROWS = 200
"""The most rows of a table."""
_WIDTH, _HEIGHT = 480, 90
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
_LEFT = ' style="text-align: left"'


class Shown:
    """A value that shows itself to people: a terminal and a page show its facts, and so does a notebook."""

    __slots__ = ()

    def as_facts(self) -> Facts:
        """The value for people."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_of(self.as_facts())


def html_of(facts: Facts) -> str:
    """Facts, as HTML."""
    tables = "".join(grid_html(each.grid(ROWS)) for each in facts.tables)
    notes = "".join(f"<p>{escape(note)}</p>" for note in facts.notes)
    return (facts_html(facts.pairs()) if facts.lines else "") + tables + notes


def grid_html(grid: Grid) -> str:
    """A table, as HTML. Every cell is escaped: names of streams and errors may have anything in them. None is empty,
    and whole numbers have separators."""
    head = "".join(f"<th{_LEFT}>{escape(column)}</th>" for column in grid.headings)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in grid.rows)
    above = f"<caption{_LEFT}>{escape(grid.title)}</caption>" if grid.title else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_html(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values, as HTML. Those without a value are left out."""
    known = ((escape(name.strip()), value) for name, value in rows if value not in (None, ""))
    body = "".join(f"<tr><th{_LEFT}>{name}</th>{_cell(value, aside=False)}</tr>" for name, value in known)
    return f"<table><tbody>{body}</tbody></table>"


def plot_svg(title: str, unit: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Lines over the same moments, as a small picture; the newest values are at the right. Empty without two moments.

    Args:
        title: above the picture.
        unit: of the values, which begin at 0.
        lines: the values by name, all of the same length.
    """
    count, top = max(map(len, lines.values()), default=0), max((max(own) for own in lines.values() if own), default=0.0)
    if count < 2:
        return ""
    shown = []
    for number, (name, values) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join(
            f"{x * _WIDTH / (count - 1):.1f},{_HEIGHT - (y / top * _HEIGHT if top else 0):.1f}"
            for x, y in enumerate(values)
        )
        last = f"{name}: {values[-1]:,.0f} {unit}"
        shown.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
            f'<text x="0" y="{_HEIGHT + 14 * (number + 1)}" font-size="11" fill="{color}">{escape(last)}</text>'
        )
    height = _HEIGHT + 14 * len(lines) + 6
    return (
        f'<div>{escape(title)}, up to {top:,.0f}</div><svg width="{_WIDTH}" height="{height}" role="img">'
        f"{''.join(shown)}</svg>"
    )


def _cell(value: object, *, aside: bool = True) -> str:
    """A cell. With `aside`, whole numbers are at its right."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value:,}</td>' if aside else f"<td{_LEFT}>{value:,}</td>"
    return f"<td{_LEFT}>{'' if value is None else escape(str(value))}</td>"
