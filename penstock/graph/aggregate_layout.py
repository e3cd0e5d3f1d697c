"""The definitions of stores of aggregates and windows: the properties that their bytes depend on, as one word.

A checkpoint has the word, and a start refuses another one, so the words of before must stay as they are. Each form is
declared once; it writes the word and reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.api.serdes import Serde
from penstock.api.time.aggregates import Aggregate
from penstock.api.time.windows import Aggregates, Window
from penstock.graph.aggregation import ColumnAggregates

_KIND = r"[^,=:]+=[^,=:]+"


class _Form:
    """A word with fields in it."""

    def __init__(self, word: str, **patterns: str) -> None:
        """
        Args:
            word: the word, with `{name}` for a field.
            patterns: regular expressions of fields; without one, a field is any text.
        """
        self._word = word
        fixed_and_fields = enumerate(re.split(r"\{(\w+)\}", word))
        self._pattern = re.compile(
            "".join(
                f"(?P<{part}>{patterns.get(part, '.*')})" if n % 2 else re.escape(part) for n, part in fixed_and_fields
            )
        )

    def write(self, **fields: object) -> str:
        return self._word.format(**fields)

    def read(self, word: str) -> Mapping[str, str] | None:
        found = self._pattern.fullmatch(word)
        return None if found is None else found.groupdict()


_KINDS = {"kinds": rf"{_KIND}(?:,{_KIND})*"}
_ROWS = _Form("aggregate({kinds})", **_KINDS)
_COLUMNS = _Form("aggregate-columns({kinds}:{types})", types=".+", **_KINDS)
_WINDOW = "{shape}:{time}:{kinds}:{key}:early={early}:late={late}:{panes}:lateness={lateness}"
_WINDOW_BY_ROW = _Form(_WINDOW)
_WINDOW_BY_COLUMN = _Form(
    f"{_WINDOW}:columns={{types}}", shape=r"[A-Z]\w*\([^)]*\)", time="event", types=".+", **_KINDS
)


def aggregates_definition(aggregates: Mapping[str, Aggregate], by_column: ColumnAggregates | None) -> str:
    """The definition of the store of an `aggregate`. `by_column`: None if messages are added one at a time."""
    if by_column is None:
        return _ROWS.write(kinds=_text_of(aggregates))
    return _COLUMNS.write(kinds=_text_of(aggregates), types=_types(by_column)).replace(" ", "")


def window_definition(
    window: Window, key: Serde[Any], message: Serde[Any], by_column: ColumnAggregates | None = None
) -> str:
    """The definition of the store of a window. Functions are left out: they may change."""
    if window.keeps_messages:
        kinds = f"messages({message.name})"
    elif isinstance(window.contents, Aggregates):
        kinds = _text_of(window.contents.by_name)
    else:
        kinds = f"fold({window.value.name})"
    fields = {
        "shape": window.shape,
        "time": window.time,
        "kinds": kinds,
        "key": key.name if window.keyed else "task",
        "early": window.early,
        "late": window.late,
        "panes": "accumulating" if window.accumulating else "discarding",
        "lateness": window.allowed_lateness_ms,
    }
    if by_column is None:
        return _WINDOW_BY_ROW.write(**fields).replace(" ", "")
    return _WINDOW_BY_COLUMN.write(types=_types(by_column), **fields).replace(" ", "")


@dataclass(frozen=True, slots=True)
class AggregateLayout:
    """The aggregates of a store, as its definition has them."""

    kinds: tuple[tuple[str, str], ...]
    """The name of each, and the name of its class."""
    types: str | None
    """The types of the columns of their states; None: a state is a list with a value for each aggregate."""

    @classmethod
    def parse(cls, definition: str) -> AggregateLayout | None:
        """The aggregates of a definition; None if it has no declared ones, or keeps no states of them alone.

        Example:
            >>> AggregateLayout.parse("aggregate-columns(flights=Count,miles=Sum:int64,int64)")
            AggregateLayout(kinds=(('flights', 'Count'), ('miles', 'Sum')), types='int64,int64')
        """
        found = _ROWS.read(definition) or _COLUMNS.read(definition) or _WINDOW_BY_COLUMN.read(definition)
        return None if found is None else cls(_kinds(found["kinds"]), found.get("types"))


def _text_of(aggregates: Mapping[str, Aggregate]) -> str:
    return ",".join(f"{name}={type(each).__qualname__}" for name, each in aggregates.items())


def _kinds(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name, _, kind in (part.partition("=") for part in text.split(",")))


def _types(by_column: ColumnAggregates) -> str:
    from penstock.arrays.type_names import text_of_types

    return text_of_types(field.type for field in by_column.state_fields)
