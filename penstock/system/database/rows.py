"""Messages as changes of a table's rows, and its columns with the values of JSON that they take.

Pure: the workers check messages with it, without a database.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.base.exact_json import decimal_of, json_decimal, uuid_of
from penstock.system.base import RecordLimits

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


_decode: Callable[[bytes], Any] = msgspec.json.Decoder(float_hook=decimal_of).decode


class RowChange(NamedTuple):
    """A change of one row: it is deleted, or these columns get these values."""

    key: tuple[Any, ...]
    row: Mapping[str, Any] | None
    """With the columns of the key; None deletes."""


class TableForm:
    """The columns of a table and its key, by which messages become changes.

    Example:
        >>> columns = TableColumn("shop", "text", "TEXT", nullable=False), TableColumn("amount", "integer", "BIGINT")
        >>> form = TableForm("db.totals", columns, ["shop"])
        >>> form.change(b"s1", b'{"amount": 5}')
        RowChange(key=('s1',), row={'shop': 's1', 'amount': 5})
        >>> form.problem(b"s1", b'{"amount": "many"}')
        'column `amount` of `db.totals`, BIGINT: "many" is not an integer'
    """

    def __init__(self, table: str, columns: Sequence[TableColumn], key: Sequence[str]) -> None:
        """
        Args:
            table: its name, for messages.
            columns: its columns.
            key: the names of the columns of its key.
        """
        self.table = table
        self.columns = {column.name: column for column in columns}
        self.key = tuple(key)
        self._required = tuple(each.name for each in columns if each.required and each.name not in self.key)

    def change(self, key: bytes | None, value: bytes | None) -> RowChange:
        """The change that a message makes. Raises ValueError if it fits no row."""
        if value is None:
            found = self._key_of(key, "it has no value, so it deletes the row of its key")
            return RowChange(tuple(found[name] for name in self.key), None)
        row = self._row_of(value)
        if any(name not in row for name in self.key):
            row = self._key_of(key, f"its value lacks columns of the key ({self._names})") | row
        for name in self._required:
            if name not in row:
                raise ValueError(
                    f"its value has no `{name}`, a column of `{self.table}` that is NOT NULL and has no default"
                )
        return RowChange(tuple(row[name] for name in self.key), row)

    def problem(self, key: bytes | None, value: bytes | None) -> str | None:
        """The reason why a message is no change; None if it is one."""
        try:
            self.change(key, value)
        except ValueError as error:
            return str(error)
        return None

    @property
    def _names(self) -> str:
        return ", ".join(f"`{name}`" for name in self.key)

    def _row_of(self, value: bytes) -> dict[str, Any]:
        try:
            read = _decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ValueError(f"its value is not JSON: {error}") from None
        if not isinstance(read, dict):
            raise ValueError(f"its value is {shown(read)}, and no object whose fields are columns")  # noqa: TRY004
        return {name: self._cell(name, each) for name, each in read.items()}

    def _cell(self, name: str, value: Any) -> Any:
        column = self.columns.get(name)
        if column is None:
            raise ValueError(f"`{self.table}` has no column `{name}`; it has {', '.join(self.columns)}")
        if column.computed:
            raise ValueError(f"the database computes the column `{name}` of `{self.table}`: leave it out")
        if value is None and name in self.key:
            raise ValueError(f"column `{name}` of the key of `{self.table}` is null, and must not be")
        try:
            return column.of_json(value)
        except ValueError as error:
            raise ValueError(f"column `{name}` of `{self.table}`, {column.type}: {error}") from None

    def _key_of(self, key: bytes | None, why: str) -> dict[str, Any]:
        """The columns of the key, from a message's key: an object that has them, or the value of the only one."""
        wanted = f"{why}: the message's key must be a JSON object with {self._names}"
        if key is None:
            raise ValueError(f"{wanted}, and it has none")
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{wanted}, and it is not text") from None
        try:
            read = _decode(key)
        except (msgspec.DecodeError, ValueError, RecursionError):
            read = text
        if isinstance(read, dict):
            if sorted(read) != sorted(self.key):
                raise ValueError(f"{wanted}, and no others: it is {shown(read)}")
            return {name: self._cell(name, each) for name, each in read.items()}
        if len(self.key) > 1:
            raise ValueError(f"{wanted}: it is {shown(read)}")
        name = self.key[0]
        if self.columns[name].kind in ("text", "choice", "other"):
            if text.startswith('"'):
                raise ValueError(
                    f'{wanted}, or text: {shown(text)} may be text that has quotes, or JSON. Send {{"{name}": ...}}'
                )
            read = text
        return {name: self._cell(name, read)}


@dataclass(frozen=True, slots=True)
class TableLimits(RecordLimits):
    """The limits of a table: it refuses messages that are no changes of its rows.

    Args:
        form: the table's columns and key.
    """

    form: TableForm = field(kw_only=True)

    @property
    def least_bytes(self) -> int | None:
        """No record is accepted unchecked."""
        return -1

    @property
    def remedy(self) -> str:
        return "Declare the types of the input with ps.Columns, filter or map them, or change the column of the table"

    def refused(self, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> str | None:
        return self.form.problem(key, value)


def needed(changes: Sequence[RowChange]) -> list[RowChange]:
    """The changes without those that later ones of their key undo. The order stays.

    It stays because a database may take two keys for one that differ here, as a collation without case does.

    Example:
        >>> steps = [RowChange((1,), row) for row in ({"a": 1}, {"a": 1, "b": 2}, {"a": 3})]
        >>> [(change.key, change.row) for change in needed([*steps, RowChange((2,), None)])]
        [((1,), {'a': 1, 'b': 2}), ((1,), {'a': 3}), ((2,), None)]
    """
    found = []
    later: dict[tuple[Any, ...], set[str] | None] = {}
    """By key, the columns that later changes set; None: one deletes the row."""
    for change in reversed(changes):
        known = later.get(change.key, set())
        if known is None or (change.row is not None and change.row.keys() <= known):
            continue
        later[change.key] = None if change.row is None else known | change.row.keys()
        found.append(change)
    return found[::-1]


def alike(changes: Sequence[RowChange]) -> Iterator[tuple[frozenset[str] | None, list[RowChange]]]:
    """The changes in runs that one statement makes: deletes, or rows with the same columns.

    Example:
        >>> changes = RowChange((1,), {"a": 1}), RowChange((2,), {"a": 2})
        >>> [(sorted(names or ()), len(run)) for names, run in alike(changes)]
        [(['a'], 2)]
    """
    run: list[RowChange] = []
    names: frozenset[str] | None = None
    for change in changes:
        own = None if change.row is None else frozenset(change.row)
        if run and own != names:
            yield names, run
            run = []
        names = own
        run.append(change)
    if run:
        yield names, run
