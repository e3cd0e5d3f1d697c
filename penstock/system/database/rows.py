"""Messages as changes of a table's rows. Pure: the workers check messages with it, without a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from penstock.base.literals import decimal_of
from penstock.system.base import RecordLimits
from penstock.system.database.columns import TableColumn, shown

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
