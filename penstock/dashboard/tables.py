"""Facts as tables of a page. Pure."""

from __future__ import annotations

from typing import Any

from penstock.facts import FactTable

Document = dict[str, Any]
ROWS = 50
"""The most rows of a table."""


def page_table(table: FactTable) -> Document:
    """A table of a page."""
    grid = table.grid(ROWS)
    return {
        "title": grid.title,
        "columns": grid.headings,
        "right": [each.heading for each in grid.columns if each.right],
        "rows": [[_text(cell) for cell in row] for row in grid.rows],
        "note": grid.note,
        "first_to_go": grid.first_to_go,
    }


def _text(cell: object) -> str:
    return "" if cell is None else f"{cell:,}" if type(cell) is int else str(cell)
