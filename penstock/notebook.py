"""Values as tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align: left"'


def table_html(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, as HTML. Every cell is escaped: names of streams and errors may have anything in them.

    Args:
        caption: above the table; may be empty.
        columns: the heads.
        rows: a cell for each column. None is empty, and whole numbers have separators.
    """
    head = "".join(f"<th{_LEFT}>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    above = f"<caption{_LEFT}>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_html(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values, as HTML. Those without a value are left out."""
    body = "".join(
        f"<tr><th{_LEFT}>{escape(name)}</th>{_cell(value)}</tr>" for name, value in rows if value not in (None, "")
    )
    return f"<table><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value:,}</td>'
    return f"<td{_LEFT}>{'' if value is None else escape(str(value))}</td>"
