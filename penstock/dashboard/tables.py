"""Tables of a page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Document = dict[str, Any]


def table(title: str, columns: str, rows: Iterable[Sequence[object]], right: str = "", note: str = "") -> Document:
    """A table. `columns` and `right` are separated by commas."""
    names = columns.split(", ")
    made = [["" if cell is None else f"{cell:,}" if type(cell) is int else str(cell) for cell in row] for row in rows]
    return {"title": title, "columns": names, "right": right.split(", "), "rows": made, "note": note}
