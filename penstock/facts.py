"""Facts about a job, for people and programs: values whose fields say how they are shown.

A fact is a frozen dataclass. `Annotated[int, Column("behind", right=True)]` gives its field a heading; a terminal, a
page and JSON show it without knowing the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """The column in which the values of a field are shown."""

    heading: str
    text: Callable[[Any], str | None] = str
    """The text of a value that is not None."""
    absent: str | None = None
    """The text for None; None: the table's sign for no value."""
    right: bool = False
    """True for numbers."""
    first_to_go: bool = False
    """True if the column is left out where there is no room for all."""

    def cell(self, value: Any) -> str | None:
        """The text of a value."""
        return self.absent if value is None else self.text(value)


@dataclass(frozen=True, slots=True)
class FactTable:
    """Facts of one kind, one in each row."""

    title: str
    rows: Sequence[Any]
    """Instances of one frozen dataclass."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(_columns(self.rows[0].__class__).values()) if self.rows else ()

    def cells(self) -> Iterator[list[str | None]]:
        """The texts of each row, in the order of `columns`."""
        for row in self.rows:
            yield [column.cell(getattr(row, name)) for name, column in _columns(row.__class__).items()]


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a wing has about a job.

    Example:
        >>> Facts({"records": 3}).lines["records"]
        3
    """

    lines: Mapping[str, object] = field(default_factory=dict)
    """By label, in the order in which they are shown."""
    tables: tuple[FactTable, ...] = ()

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """The facts of one class in all tables."""
        return tuple(row for table in self.tables for row in table.rows if isinstance(row, kind))


@cache
def _columns(kind: Any) -> dict[str, Column]:
    """Field → column, in the order of the fields. A field without a `Column` is for programs only."""
    hints = get_type_hints(kind, include_extras=True)
    found = {each.name: getattr(hints[each.name], "__metadata__", ()) for each in fields(kind)}
    return {name: column for name, more in found.items() for column in more if isinstance(column, Column)}
