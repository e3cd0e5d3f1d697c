"""Columns of a table, and the values of JSON that they take. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

import msgspec

from penstock.base.literals import json_decimal, uuid_of

Kind = Literal[
    "array", "boolean", "bytes", "choice", "date", "decimal", "flag", "float", "integer", "json", "local", "other",
    "text", "time", "timestamp", "uuid",
]  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 80
_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Args:
        name: its name.
        kind: the values that it takes. `flag` is a number that stands for a boolean, `local` a time without a zone, and
            `other` a type that only the database knows.
        type: its type in SQL, for messages.
        nullable: whether it takes NULL.
        required: whether each row must have a value for it: it is not null, and has no default.
        computed: whether the database alone sets it.
        bounds: of an integer, the least and the largest one.
        length: of a text, the most characters.
        precision, scale: of a decimal, its digits, and those behind the point.
        choices: of a `choice`, its texts.
        item: of an array, a column for its items.
    """

    name: str
    kind: Kind
    type: str
    nullable: bool = True
    required: bool = False
    computed: bool = False
    bounds: tuple[int, int] = (-(1 << 63), (1 << 63) - 1)
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    choices: tuple[str, ...] = ()
    item: TableColumn | None = None

    def of_json(self, value: Any) -> Any:
        """The value that a driver takes, of one that was read from JSON. Raises ValueError if it does not fit."""
        if value is None:
            if not self.nullable:
                raise ValueError("is null, and must not be")
            return None
        return _KINDS[self.kind](self, value)


def as_json(value: Any) -> str:
    """The JSON of a value that was read from JSON, whose numbers keep all their digits."""
    return _encode(value).decode()


def shown(value: Any) -> str:
    """A value as JSON, cut to a length for messages."""
    text = value if isinstance(value, str) else as_json(value)
    text = f'"{text}"' if isinstance(value, str) and not value.startswith('"') else text
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _not(value: Any, what: str) -> ValueError:
    return ValueError(f"{shown(value)} is not {what}")


def _boolean(column: TableColumn, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _not(value, "true or false")
    return value


def _integer(column: TableColumn, value: Any) -> int:
    low, high = column.bounds
    if not isinstance(value, int) or isinstance(value, bool):
        raise _not(value, "an integer")
    if not low <= value <= high:
        raise ValueError(f"{value} is not between {low} and {high}")
    return value


def _flag(column: TableColumn, value: Any) -> int:
    return _integer(column, int(value) if isinstance(value, bool) else value)


def _float(column: TableColumn, value: Any) -> float:
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        raise _not(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{shown(value)} is too large")
    return number


def _decimal(column: TableColumn, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise _not(value, "a decimal")
    try:
        number: Decimal = json_decimal(value)
    except ValueError:
        raise _not(value, "a decimal") from None
    if not number.is_finite():
        raise _not(value, "a decimal")
    _, digits, exponent = number.as_tuple()
    zeros = next((count for count, digit in enumerate(reversed(digits)) if digit), 0)
    behind = max(0, -int(exponent) - zeros) if number else 0
    if column.scale is not None and behind > column.scale:
        raise ValueError(f"{shown(value)} has more than {column.scale} digits behind the point")
    before = max(0, number.adjusted() + 1) if number else 0
    if column.precision is not None and before > column.precision - (column.scale or 0):
        raise ValueError(f"{shown(value)} has more than {column.precision - (column.scale or 0)} digits before it")
    return number


def _text(column: TableColumn, value: Any) -> str:
    if not isinstance(value, str):
        raise _not(value, "text")
    if "\0" in value:
        raise ValueError("the text has a zero byte, which databases refuse")
    if column.length is not None and len(value) > column.length:
        raise ValueError(f"the text has {len(value)} characters, and the column takes {column.length}")
    return value


def _choice(column: TableColumn, value: Any) -> str:
    if value not in column.choices:
        raise _not(value, f"one of {', '.join(column.choices)}")
    return str(value)


def _bytes(column: TableColumn, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _not(value, "Base64") from None


def _parsed(value: Any, parse: Callable[[str], Any], what: str) -> Any:
    if not isinstance(value, str):
        raise _not(value, what)
    try:
        return parse(value)
    except ValueError:
        raise _not(value, what) from None


def _timestamp(column: TableColumn, value: Any) -> datetime:
    what = "a time: text with a zone, as in 2026-01-31T12:00:00Z, or epoch milliseconds"
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            raise _not(value, what) from None
    found: datetime = _parsed(value, datetime.fromisoformat, what)
    if found.tzinfo is None:
        raise _not(value, what)
    try:
        return found.astimezone(UTC)
    except OverflowError:  # of the first or last day that there is
        raise _not(value, what) from None


def _local(column: TableColumn, value: Any) -> datetime:
    what = "a time without a zone, as in 2026-01-31T12:00:00"
    found: datetime = _parsed(value, datetime.fromisoformat, what)
    if found.tzinfo is not None:
        raise _not(value, what)
    return found


def _array(column: TableColumn, value: Any) -> list[Any]:
    if not isinstance(value, list) or column.item is None:
        raise _not(value, "an array")
    return [column.item.of_json(each) for each in value]


def _other(column: TableColumn, value: Any) -> Any:
    if isinstance(value, dict | list):
        raise _not(value, "a text or a number")
    return value


_KINDS: Mapping[Kind, Callable[[TableColumn, Any], Any]] = {
    "array": _array,
    "boolean": _boolean,
    "bytes": _bytes,
    "choice": _choice,
    "date": lambda column, value: _parsed(value, date.fromisoformat, "a date, as in 2026-01-31"),
    "decimal": _decimal,
    "flag": _flag,
    "float": _float,
    "integer": _integer,
    "json": lambda column, value: value,
    "local": _local,
    "other": _other,
    "text": _text,
    "time": lambda column, value: _parsed(value, time.fromisoformat, "a time of day, as in 12:30:00"),
    "timestamp": _timestamp,
    "uuid": lambda column, value: _parsed(value, uuid_of, "a UUID"),
}
