"""Facts about a job, for people and programs: values whose fields say how they are shown; and as HTML, with plots, in
a notebook.

A fact is a frozen dataclass. `Annotated[int, Column("behind", right=True)]` gives its field a heading; a terminal, a
page, a notebook and JSON show it without knowing the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from html import escape
from inspect import get_annotations
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")
FOR_PEOPLE = {"people": True}
"""The metadata of a field that JSON leaves out."""


@dataclass(frozen=True, slots=True)
class Column:
    """The column in which the values of a field are shown. A field may have several."""

    heading: str
    text: Callable[[Any], object] | None = None
    """The text of a value that is not None. None: the value itself; each place has its own form for numbers."""
    absent: str | None = None
    """The text for None; None: the table's sign for no value."""
    right: bool = False
    """True for numbers."""
    first_to_go: int = 0
    """Where there is no room for all columns, those with a number are left out, the least one first. True is 1."""
    of: Callable[[Any], object] | None = None
    """The value, made of the whole fact. None: the value of the field."""
    optional: bool = False
    """True if the column is left out where no fact has a value for it."""
    most_first: bool = False
    """True if a page shows the facts with the largest numbers first. The last such column with numbers counts."""

    def cell(self, value: Any) -> object:
        """The text of a value, or a number."""
        return self.absent if value is None else value if self.text is None else self.text(value)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts and numbers, which any place can show."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[object]]
    """A cell for each column; None: no value."""
    note: str = ""

    @property
    def headings(self) -> list[str]:
        return [each.heading for each in self.columns]

    @property
    def first_to_go(self) -> list[str]:
        """The headings of the columns that may be left out, in this order."""
        return [each.heading for each in sorted(self.columns, key=lambda each: each.first_to_go) if each.first_to_go]


@dataclass(frozen=True, slots=True)
class FactTable:
    """Facts of one kind, one in each row."""

    title: str
    rows: Sequence[Any]
    """Instances of one frozen dataclass; or, with `headed`, sequences of cells."""
    totals: Sequence[Any] = field(default=(), metadata=FOR_PEOPLE)
    """Rows behind all others: their sums."""
    note: str = field(default="", metadata=FOR_PEOPLE)
    """A sentence below the table."""
    headed: tuple[Column, ...] = field(default=(), metadata=FOR_PEOPLE)

    @classmethod
    def of(cls, title: str, headings: str, rows: Iterable[Sequence[object]], note: str = "") -> FactTable:
        """A table of cells that no class of facts has.

        Args:
            title: the line above the table.
            headings: separated by commas. `>` behind a heading marks numbers; `?1` and so on are `first_to_go`.
            rows: a cell for each heading.
            note: the sentence below the table.

        Example:
            >>> table = FactTable.of("Positions", "input, next>", [("local.trips.0", 3)])
            >>> [(each.heading, each.right) for each in table.grid().columns], table.grid().rows
            ([('input', False), ('next', True)], [['local.trips.0', 3]])
        """
        found = (heading.strip().partition("?") for heading in headings.split(","))
        columns = (Column(n.removesuffix(">"), right=n.endswith(">"), first_to_go=int(to or 0)) for n, _, to in found)
        return cls(title, list(rows), note=note, headed=tuple(columns))

    def grid(self, most: int | None = None) -> Grid:
        """The table as texts and numbers.

        Args:
            most: at most so many rows, and those with the largest numbers first; None: all, in their order.
        """
        all_rows = [self._cells(row) for row in (*self.rows, *self.totals)]
        columns = self.headed or (_columns_of((*self.rows, *self.totals)[0].__class__)[0] if all_rows else ())
        body, totals = all_rows[: len(self.rows)], all_rows[len(self.rows) :]
        note = self.note
        found = [place for place, each in enumerate(columns) if each.most_first and any(row[place] for row in body)]
        if most is not None and found:
            body.sort(key=lambda row: -row[found[-1]] if isinstance(row[found[-1]], int | float) else 1)
        if most is not None and len(body) > most:
            which = f"those with the most {columns[found[-1]].heading}" if found else "the first"
            note = f"{note} {most} of {len(body):,}, {which}".strip()
            body, totals = body[:most], []
        rows = [[column.cell(value) for column, value in zip(columns, row, strict=True)] for row in (*body, *totals)]
        kept = [at for at, each in enumerate(columns) if not each.optional or any(row[at] is not None for row in rows)]
        return Grid(self.title, tuple(columns[at] for at in kept), [[row[at] for at in kept] for row in rows], note)

    def _cells(self, row: Any) -> Sequence[Any]:
        if self.headed:
            return [row[place] if each.of is None else each.of(row) for place, each in enumerate(self.headed)]
        return [value(row) for value in _columns_of(row.__class__)[1]]


@dataclass(frozen=True, slots=True)
class Facts:
    """Lines, tables and sentences about a job, or about something else.

    Example:
        >>> Facts({"records": 3}).lines["records"]
        3
    """

    lines: Mapping[str, object] = field(default_factory=dict)
    """By label, in the order in which they are shown. A tuple has a line for each of its items."""
    tables: tuple[FactTable, ...] = ()
    notes: tuple[str, ...] = field(default=(), metadata=FOR_PEOPLE)
    """Sentences, which begin with `warning: ` or `note: `."""

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """The facts of one class in all tables."""
        return tuple(row for table in self.tables for row in table.rows if isinstance(row, kind))

    def pairs(self) -> Iterator[tuple[str, object]]:
        """The lines, each with its label."""
        for label, value in self.lines.items():
            for each in _each(value):
                yield label, each

    def __add__(self, other: Facts) -> Facts:
        """These, and others behind them. Of a label that both have, all lines are kept."""
        lines = dict(self.lines)
        for label, value in other.lines.items():
            lines[label] = (*_each(lines[label]), *_each(value)) if label in lines else value
        return Facts(lines, self.tables + other.tables, self.notes + other.notes)

    @classmethod
    def some(cls, lines: Mapping[str, object] | None = None, *tables: FactTable, notes: Iterable[str] = ()) -> Facts:
        """Facts without the tables that have no rows."""
        return cls(lines or {}, tuple(each for each in tables if each.rows), tuple(notes))


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


@cache
def _columns_of(kind: Any) -> tuple[tuple[Column, ...], tuple[Callable[[Any], Any], ...]]:
    """The columns of a class of facts, in the order of its fields, and what each takes from a fact. A field without a
    `Column` is for programs only."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):  # each in its own module, where lambdas find their names
        hints |= get_annotations(base, eval_str=True)
    columns: list[Column] = []
    values: list[Callable[[Any], Any]] = []
    for each in fields(kind):
        for column in getattr(hints[each.name], "__metadata__", ()):
            if isinstance(column, Column):
                columns.append(column)
                values.append(column.of or attrgetter(each.name))
    return tuple(columns), tuple(values)


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
