"""Reads Avro's binary form, within the budget of a message."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.base.budgets import MessageBudget
from penstock.schemas.avro_logical import LogicalTypes, logical_of
from penstock.schemas.avro_misfits import MisfitError
from penstock.schemas.avro_types import RECORDS, AvroTypes
from penstock.schemas.avro_writer import fixed_size
from penstock.schemas.serde import Read

Take: TypeAlias = Callable[[bytes, int, MessageBudget], tuple[Any, int]]
"""A value of the bytes from a place on, and the place behind it. Past the end of the bytes it raises IndexError."""

_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def read_all(take: Take, start: int = 0) -> Read:
    """Reads whole messages.

    Args:
        take: the value of a message.
        start: the number of bytes before it.
    """

    def read(data: bytes) -> Any:
        try:
            value, at = take(data, start, MessageBudget(len(data)))
        except Exception as error:
            raise MisfitError.of(error).error() from None
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes are left: it was written with another schema")
        return value

    return read


class Readers:
    """Makes the function that reads each type of a schema."""

    def __init__(self, types: AvroTypes) -> None:
        self._types = types
        self._records: dict[str, list[Take]] = {}
        """The reader of each record by name; an empty list while it is made."""

    def held(self, schema: Any) -> Take:
        """The reader of a branch of a union, or of a whole message."""
        return counted(self.of(schema), self._types.empty_branch(schema))

    def of(self, schema: Any) -> Take:
        """The reader of a type. Raises ValueError if the type exceeds a budget."""
        definition = self._types.resolved(schema)
        kind = self._types.kind(definition)
        if kind == "union":
            return union([self.held(each) for each in definition])
        if kind in RECORDS:
            return self._record(definition)
        if kind == "array":
            return array(self.of(definition["items"]), self._types.empty_values(definition["items"]))
        if kind == "map":
            return mapping(self.of(definition["values"]), self._types.empty_values(definition["values"]))
        logical = logical_of(definition)
        take = plain(kind, definition)
        return take if logical is None else made(take, logical)

    def _record(self, definition: Any) -> Take:
        name = str(definition["name"])
        known = self._records.get(name)
        if known is not None:
            return known[0] if known else again(known)
        target = self._records[name] = []
        fields = [(str(field["name"]), self.of(field["type"])) for field in definition["fields"]]
        target.append(counted(record(fields), self._types.empty_fields(definition)))
        return target[0]


def record(fields: Sequence[tuple[str, Take]]) -> Take:
    """A record with these fields."""

    def take_record(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        row, name = {}, ""
        try:
            for name, take in fields:
                row[name], at = take(data, at, budget)
        except Exception as error:
            raise MisfitError.of(error).inside(f".{name}") from None
        return row, at

    return take_record


def again(target: Sequence[Take]) -> Take:
    """A record within itself."""

    def take_again(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        budget.enter()
        found = target[0](data, at, budget)
        budget.leave()
        return found

    return take_again


def counted(take: Take, empty: int) -> Take:
    """A type that makes values without bytes."""
    if not empty:
        return take

    def take_counted(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        budget.take(empty)
        return take(data, at, budget)

    return take_counted


def made(take: Take, logical: LogicalTypes) -> Take:
    """A logical type."""
    of = logical.made

    def take_made(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        value, at = take(data, at, budget)
        return of(value), at

    return take_made


def union(takes: Sequence[Take]) -> Take:
    """One of several types, by their number."""
    count = len(takes)

    def take_union(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        number = data[at]
        if number < 128:
            at += 1
            number = number >> 1 if not number & 1 else -1
        else:
            number, at = long_at(data, at)
        if not 0 <= number < count:
            raise ValueError(f"it has branch {number} of a union that has {count}")
        return takes[number](data, at, budget)

    return take_union


def array(take: Take, empty: int | None) -> Take:
    """An array.

    Args:
        take: an item.
        empty: the values of an item that has no bytes; None: it has some.
    """

    def take_array(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        items: list[Any] = []
        add = items.append
        try:
            while True:
                count, at, end = block(data, at)
                if not count:
                    return items, at
                _check_count(count, len(data) - at, empty, budget)
                for _ in range(count):
                    item, at = take(data, at, budget)
                    add(item)
                _check_end(at, end)
        except Exception as error:
            raise MisfitError.of(error).inside("[]") from None

    return take_array


def mapping(take: Take, empty: int | None) -> Take:
    """A map. See `array`."""

    def take_map(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        found: dict[str, Any] = {}
        try:
            while True:
                count, at, end = block(data, at)
                if not count:
                    return found, at
                _check_count(count, len(data) - at, None, budget)
                budget.take((empty or 0) * count)
                for _ in range(count):
                    key, at = string(data, at, budget)
                    found[key], at = take(data, at, budget)
                _check_end(at, end)
        except Exception as error:
            raise MisfitError.of(error).inside("[]") from None

    return take_map


def block(data: bytes, at: int) -> tuple[int, int, int | None]:
    """The number of items in a block, the place of the first one, and the block's end if it says so."""
    count, at = long_at(data, at)
    if count >= 0:
        return count, at, None
    size, at = long_at(data, at)
    return -count, at, at + size


def _check_count(count: int, size: int, empty: int | None, budget: MessageBudget) -> None:
    """Raise an error if there cannot be so many items, before one is made."""
    if empty is not None:
        budget.take(count * empty)
    elif count > size:
        raise EOFError(f"{count} items cannot be in {size} bytes")


def _check_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise ValueError(f"a block of items has another size than it says: {at - end:+} bytes")


def long_at(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits."""
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 127, 7
    while (byte := data[at]) > 127:
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 10 bytes")
    number |= byte << shift
    at += 1
    if number >> 64:
        raise ValueError("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _long(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    byte = data[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return long_at(data, at)


def _int(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    byte = data[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, at = long_at(data, at)
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise ValueError(f"{number} is out of the range of Avro's int, -2^31 to 2^31 - 1")
    return number, at


def _end(data: bytes, at: int) -> tuple[int, int]:
    """The end of bytes that begin with their number, and their beginning."""
    size, at = long_at(data, at)
    if size < 0:
        raise ValueError(f"a size is negative: {size}")
    end = at + size
    if end > len(data):
        raise EOFError(f"{size} bytes cannot be in {len(data) - at}")
    return end, at


def string(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    """A text."""
    size = data[at]
    if size < 128 and not size & 1:  # nearly all
        at += 1
        end = at + (size >> 1)
        if end > len(data):
            raise IndexError
    else:
        end, at = _end(data, at)
    return data[at:end].decode(), end


def _bytes(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    end, at = _end(data, at)
    return data[at:end], end


def _null(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    return None, at


def _boolean(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    byte = data[at]
    if byte > 1:
        raise ValueError(f"a boolean is {byte}: it is 0 or 1")
    return byte == 1, at + 1


def _double(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    end = at + 8
    if end > len(data):
        raise IndexError
    return _DOUBLE.unpack_from(data, at)[0], end


def _float(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
    end = at + 4
    if end > len(data):
        raise IndexError
    return _FLOAT.unpack_from(data, at)[0], end


_PLAIN: Mapping[str, Take] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "string": string,
    "bytes": _bytes,
}


def plain(kind: str, definition: Any) -> Take:
    """A type without others in it, without its logical type."""
    if kind == "enum":
        return enum({symbol: symbol for symbol in definition["symbols"]}, definition)
    if kind == "fixed":
        return _fixed(fixed_size(definition))
    return _PLAIN[kind]


def enum(read: Mapping[str, str | None], definition: Any) -> Take:
    """An enum.

    Args:
        read: what each symbol is read as; None: it cannot be.
        definition: the one that it was written with.
    """
    symbols, name = list(definition["symbols"]), definition["name"]

    def take_enum(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        number, at = long_at(data, at)
        if not 0 <= number < len(symbols):
            raise ValueError(f"it has symbol {number} of the enum `{name}`, which has {len(symbols)}")
        found = read[symbols[number]]
        if found is None:
            raise ValueError(f"the enum `{name}` has no symbol `{symbols[number]}` any more, and no default")
        return found, at

    return take_enum


def _fixed(size: int) -> Take:
    def take_fixed(data: bytes, at: int, budget: MessageBudget) -> tuple[Any, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return take_fixed
