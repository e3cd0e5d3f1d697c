"""Facts: columns in order, what is left out, and which rows come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from penstock.cli.shared.output import to_json
from penstock.facts import Column, Facts, FactTable, html_of


def _half(number: int) -> float:
    return number / 2


@dataclass(frozen=True)
class Part:
    """A fact of a test."""

    name: Annotated[str, Column("name", first_to_go=2)]
    count: Annotated[
        int | None, Column("count", right=True, most_first=True), Column("half", of=lambda e: _half(e.count or 0))
    ]
    inner: int = 0
    note: Annotated[str | None, Column("note", optional=True, first_to_go=1)] = None


PARTS = [Part("a", 1), Part("b", 3), Part("c", None)]


def test_a_column_is_left_out_where_nothing_has_a_value() -> None:
    grid = FactTable("Parts", PARTS).grid()
    assert (grid.headings, grid.first_to_go) == (["name", "count", "half"], ["name"])
    assert grid.rows == [["a", 1, 0.5], ["b", 3, 1.5], ["c", None, 0.0]]
    noted = FactTable("Parts", [*PARTS, Part("d", 2, note="x")]).grid()
    assert (noted.headings, noted.first_to_go) == (["name", "count", "half", "note"], ["note", "name"])


def test_a_page_shows_the_largest_first_and_says_what_it_leaves_out() -> None:
    table = FactTable("Parts", PARTS, totals=[Part("total", 4)], note="Counted.")
    assert [row[0] for row in table.grid(3).rows] == ["b", "a", "c", "total"]
    few = table.grid(2)
    assert ([row[0] for row in few.rows], few.note) == (["b", "a"], "Counted. 2 of 3, those with the most count")
    assert FactTable.of("", "name", [("x",), ("y",)]).grid(1).note == "1 of 2, the first"


def test_json_has_the_values_alone() -> None:
    facts = Facts({"parts": 1}, (FactTable("Parts", PARTS[:1], note="Counted."),), ("note: some",))
    row = {"name": "a", "count": 1, "inner": 0, "note": None}
    assert to_json(facts) == {"lines": {"parts": 1}, "tables": [{"title": "Parts", "rows": [row]}]}


def test_a_wing_hides_no_line_of_another_one() -> None:
    both = Facts({"status": "running"}) + Facts({"status": "audited", "more": (1, 2)}, notes=("note: x",))
    assert list(both.pairs()) == [("status", "running"), ("status", "audited"), ("more", 1), ("more", 2)]
    assert "<th" in html_of(both)
    assert both.notes == ("note: x",)
