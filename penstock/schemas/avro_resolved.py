"""Reads what one schema has written as values of another one, as Avro's schema resolution has it.

A type of the writer is read as the one of the reader. In a union, that is the branch of the same type; if there is
none, the first that the type is promoted to. Fields that were not written get their defaults.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.base.budgets import MessageBudget
from penstock.schemas import avro_reader
from penstock.schemas.avro_types import NAMED, PROMOTED, RECORDS, AvroTypes, matches
from penstock.schemas.avro_values import LogicalTypes, MisfitError, SchemaDefaults, logical_of, maker_of
from penstock.schemas.serde import Read

_FLOAT = struct.Struct("<f")


def reader_of(written: AvroTypes, read: AvroTypes | None, start: int = 0) -> Read:
    """Reads bytes of a schema.

    Args:
        written: the schema.
        read: the one whose values are wanted; None: the same.
        start: the number of bytes before a message.

    Raises:
        ValueError: the one cannot be read as the other, or a schema exceeds a budget.
    """
    try:
        if read is None or read.root == written.root:
            return avro_reader.read_all(avro_reader.Readers(written).held(written.root), start)
        take = _ResolvedReaders(written, read).of(written.root, read.root)
        return avro_reader.read_all(avro_reader.counted(take, written.empty_branch(written.root)), start)
    except MisfitError as error:
        raise error.error() from error


class _ResolvedReaders:
    """Makes the function that reads each type of a schema as one of another schema."""

    def __init__(self, written: AvroTypes, read: AvroTypes) -> None:
        self._written = written
        self._read = read
        self._skipped = avro_reader.Readers(written)
        self._defaults = SchemaDefaults(read)
        self._records: dict[tuple[str, str], list[avro_reader.Take]] = {}
        """The reader of each pair of records; an empty list while it is made."""

    def of(self, written: Any, read: Any) -> avro_reader.Take:
        """The reader of a type. Raises MisfitError if it cannot be read as the other."""
        one, other = self._written.resolved(written), self._read.resolved(read)
        if isinstance(one, list):
            return avro_reader.union([self._branch(each, read) for each in one])
        if isinstance(other, list):
            return self._into_union(one, other)
        kind, wanted = self._written.kind(one), self._read.kind(other)
        if kind != wanted:
            return self._promoted(one, other)
        if kind in NAMED and not matches(one, other):
            raise self._misfit(one, other)
        if kind in RECORDS:
            return self._record(one, other)
        if kind == "array":
            return avro_reader.array(self.of(one["items"], other["items"]), self._written.empty_values(one["items"]))
        if kind == "map":
            return avro_reader.mapping(
                self.of(one["values"], other["values"]), self._written.empty_values(one["values"])
            )
        return self._plain(kind, one, other)

    def _misfit(self, written: Any, read: Any) -> MisfitError:
        return MisfitError(f"{self._written.described(written)} cannot be read as {self._read.described(read)}")

    def _branch(self, written: Any, read: Any) -> avro_reader.Take:
        """A branch of a union. One that cannot be read is none until a message has it."""
        known = len(self._records)
        try:
            return avro_reader.counted(self.of(written, read), self._written.empty_branch(written))
        except MisfitError as error:
            self._forget(known)
            reason = str(error.error())

        def take_none(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
            raise MisfitError(reason)

        return take_none

    def _into_union(self, written: Any, branches: Sequence[Any]) -> avro_reader.Take:
        known = len(self._records)
        for branch in sorted(branches, key=lambda each: self._distance(written, each)):
            try:
                return self.of(written, branch)
            except MisfitError:
                self._forget(known)
        raise self._misfit(written, list(branches))

    def _forget(self, known: int) -> None:
        """Readers that were made for one that cannot be: they may refer to it."""
        for pair in [*self._records][known:]:
            del self._records[pair]

    def _distance(self, written: Any, read: Any) -> int:
        """The distance of a type to a branch. Sorting keeps the order of equal ones."""
        other = self._read.resolved(read)
        if self._written.kind(written) != self._read.kind(other):
            return 3
        if written["type"] in NAMED and written["name"] != other["name"]:
            return 2
        return int(written.get("logicalType") != other.get("logicalType"))

    def _record(self, written: Any, read: Any) -> avro_reader.Take:
        pair = str(written["name"]), str(read["name"])
        known = self._records.get(pair)
        if known is not None:
            return known[0] if known else avro_reader.again(known)
        target = self._records[pair] = []
        take = self._record_of(written, read)
        target.append(avro_reader.counted(take, self._written.empty_fields(written)))
        return target[0]

    def _record_of(self, written: Any, read: Any) -> avro_reader.Take:
        before = {str(field["name"]): field for field in written["fields"]}
        found, names = {}, {}
        for field in read["fields"]:
            name = str(field["name"])
            source = next((each for each in (name, *field.get("aliases", ())) if each in before), None)
            if source is None:
                if "default" not in field:
                    raise MisfitError(f"the field was not written, and has no default in `{read['name']}`").inside(
                        f".{name}"
                    )
                names[name] = field
            else:
                found[source] = (name, field)
        steps: list[tuple[str, avro_reader.Take, bool]] = []
        for source, field in before.items():
            try:
                if source in found:
                    name, own = found[source]
                    steps.append((name, self.of(field["type"], own["type"]), True))
                else:
                    steps.append((source, self._skipped.of(field["type"]), False))
            except MisfitError as error:
                raise error.inside(f".{source}") from None
        absent = [(name, maker_of(self._default(name, field))) for name, field in names.items()]
        return _record(steps, absent, [str(field["name"]) for field in read["fields"]])

    def _default(self, name: str, field: Any) -> Any:
        try:
            return self._defaults.of(field["type"], field["default"])
        except MisfitError as error:
            raise error.inside(f".{name}") from None

    def _plain(self, kind: str, written: Any, read: Any) -> avro_reader.Take:
        if kind == "enum":
            default = read.get("default")
            known = set(read["symbols"])
            return avro_reader.enum(
                {symbol: symbol if symbol in known else default for symbol in written["symbols"]}, written
            )
        if kind == "fixed" and written["size"] != read["size"]:
            raise self._misfit(written, read)
        return self._made(avro_reader.plain(kind, written), written, read, None)

    def _promoted(self, written: Any, read: Any) -> avro_reader.Take:
        kind, wanted = self._written.kind(written), self._read.kind(read)
        if wanted not in PROMOTED.get(kind, ()) or (kind == "string" and read.get("logicalType") == "decimal"):
            raise self._misfit(written, read)
        return self._made(avro_reader.plain(kind, written), written, read, _PROMOTIONS.get(wanted))

    def _made(
        self, take: avro_reader.Take, written: Any, read: Any, promote: Callable[[Any], Any] | None
    ) -> avro_reader.Take:
        """The value of the reader's logical type. Two that are one in Python, as times in different units, are read as
        what was written."""
        one, other = logical_of(written), logical_of(read)
        if one is not None and other is not None:
            if one.family == other.family:
                return avro_reader.made(take, _checked(one, other))
            if "decimal" in f"{one.family} {other.family}":
                raise self._misfit_of(one, other)
        if promote is not None:
            take = _mapped(take, promote)
        return take if other is None else avro_reader.made(take, other)

    def _misfit_of(self, one: LogicalTypes, other: LogicalTypes) -> MisfitError:
        return MisfitError(f"a {one.family} cannot be read as a {other.family}")


def _checked(one: LogicalTypes, other: LogicalTypes) -> LogicalTypes:
    """Values of a decimal must have the digits of the reader's."""
    if not one.family.startswith("decimal"):
        return one

    def made_and_checked(data: Any) -> Any:
        value = one.made(data)
        other.plain(value)
        return value

    return LogicalTypes(one.family, one.takes, one.plain, made_and_checked)


def _mapped(take: avro_reader.Take, change: Callable[[Any], Any]) -> avro_reader.Take:
    def take_mapped(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        value, at = take(data, at, budget)
        return change(value), at

    return take_mapped


def _nearest_float(number: Any) -> float:
    found: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    return found


_PROMOTIONS: Mapping[str, Callable[[Any], Any]] = {
    "float": _nearest_float,
    "double": float,
    "bytes": str.encode,
    "string": bytes.decode,
}


def _record(
    steps: Sequence[tuple[str, avro_reader.Take, bool]], absent: Sequence[tuple[str, Callable[[], Any]]], names: Any
) -> avro_reader.Take:
    """A record.

    Args:
        steps: the name of each written field, how it is read, and whether the record has it.
        absent: the fields that were not written, and their values.
        names: the fields in the order of the record.
    """
    empty = dict.fromkeys(names)

    def take_record(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        row: dict[str, Any] = empty.copy()
        name = ""
        try:
            for name, take, is_kept in steps:
                value, at = take(data, at, budget)
                if is_kept:
                    row[name] = value
        except Exception as error:
            raise MisfitError.of(error).inside(f".{name}") from None
        for name, make in absent:
            row[name] = make()
        return row, at

    return take_record
