"""Writes Avro's binary form, exactly: what is not a value of its type is an error with its place."""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from penstock.base.budgets import MESSAGE_LEVELS, MessageBudget
from penstock.schemas.avro_defaults import SchemaDefaults
from penstock.schemas.avro_logical import LogicalTypes, logical_of
from penstock.schemas.avro_misfits import MisfitError, shown, wrong
from penstock.schemas.avro_output import Output, Put
from penstock.schemas.avro_types import RECORDS, AvroTypes
from penstock.schemas.avro_unions import UnionWriter, is_number, is_whole
from penstock.schemas.serde import Write

_BITS = {"int": 31, "long": 63}
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_MISSING = object()


def writer_of(types: AvroTypes, head: bytes = b"") -> Write:
    """Writes objects of a schema. What it writes, `reader_of` reads: its budgets are the same.

    Args:
        types: the schema.
        head: what all bytes begin with.

    Raises:
        ValueError: the schema has a default or a size that is not valid, or exceeds a budget.
    """
    try:
        put = _Writers(types).held(types.root)
    except MisfitError as error:
        raise error.error() from error

    def write(obj: Any) -> bytes:
        out = Output(head)
        try:
            put(obj, out)
            if out.empty:
                MessageBudget(len(out) - len(head)).take(out.empty)
        except MisfitError as error:
            raise error.error() from None
        return bytes(out)

    return write


class _Writers:
    """Makes the function for each type of a schema."""

    def __init__(self, types: AvroTypes) -> None:
        self._types = types
        self._defaults = SchemaDefaults(types)
        self._records: dict[str, list[Put]] = {}
        """The writer of each record by name; an empty list while it is made."""

    def of(self, schema: Any) -> Put:
        definition = self._types.resolved(schema)
        kind = self._types.kind(definition)
        if kind == "union":
            return UnionWriter.of(self._types, definition, [self.held(each) for each in definition])
        if kind in RECORDS:
            return self._record(definition)
        if kind == "array":
            return self._array(definition["items"])
        if kind == "map":
            return self._map(definition["values"])
        put = self._plain(kind, definition)
        logical = logical_of(definition)
        return put if logical is None else _converted(logical, put)

    def held(self, schema: Any) -> Put:
        """The writer of a branch of a union, or of a whole message."""
        put = self.of(schema)
        empty = self._types.empty_branch(schema)

        def put_counted(value: Any, out: Output) -> None:
            out.empty += empty
            put(value, out)

        return put_counted if empty else put

    def _plain(self, kind: str, definition: Any) -> Put:
        if kind in _BITS:
            return _integer(kind, _BITS[kind])
        if kind == "enum":
            return _enum(definition)
        if kind == "fixed":
            return _fixed(definition)
        return _PLAIN[kind]

    def _record(self, definition: Any) -> Put:
        name = str(definition["name"])
        known = self._records.get(name)
        if known is not None:
            return known[0] if known else _again(self._records[name])
        made = self._records[name] = []
        fields = [(str(field["name"]), self.of(field["type"]), field) for field in definition["fields"]]
        made.append(self._record_of(name, fields, self._types.empty_fields(definition)))
        return made[0]

    def _record_of(self, record: str, fields: Sequence[tuple[str, Put, Any]], empty: int) -> Put:
        puts = [(name, put) for name, put, _ in fields]
        given = {name: field for name, _, field in fields}
        defaults: dict[str, bytes] = {}

        def default(name: str, put: Put) -> bytes:
            field = given[name]
            if "default" not in field:
                raise MisfitError(f"the field is missing, and has no default in `{record}`")
            out = Output(b"")
            put(self._defaults.of(field["type"], field["default"]), out)
            return defaults.setdefault(name, bytes(out))

        def put_record(value: Any, out: Output) -> None:
            if not isinstance(value, Mapping):
                raise wrong(value, f"dict with the fields of the record `{record}`")
            name, absent = "", 0
            if empty:
                out.empty += empty
            try:
                for name, put in puts:
                    part = value.get(name, _MISSING)
                    if part is _MISSING:
                        absent += 1
                        data = defaults.get(name)
                        out += default(name, put) if data is None else data
                    else:
                        put(part, out)
            except MisfitError as error:
                raise error.inside(f".{name}") from None
            if len(value) + absent != len(puts):
                unknown = next(each for each in value if each not in given)
                names = ", ".join(given) or "none"
                raise MisfitError(f"there is no field {unknown!r} in the record `{record}`; its fields are {names}")

        return put_record

    def _array(self, items: Any) -> Put:
        put = self.of(items)
        empty = self._types.empty_values(items) or 0

        def put_array(value: Any, out: Output) -> None:
            if type(value) is not list:
                value = _items(value)
            if value:
                out.empty += empty * len(value)
                _put_long(len(value), out)
                try:
                    for each in value:
                        put(each, out)
                except MisfitError as error:
                    raise error.inside("[]") from None
            out.append(0)

        return put_array

    def _map(self, values: Any) -> Put:
        put = self.of(values)
        empty = self._types.empty_values(values) or 0

        def put_map(value: Any, out: Output) -> None:
            if not isinstance(value, Mapping):
                raise wrong(value, "dict, as an Avro map takes it")
            if value:
                out.empty += empty * len(value)
                _put_long(len(value), out)
                try:
                    for key, each in value.items():
                        _put_string(key, out)
                        put(each, out)
                except MisfitError as error:
                    raise error.inside("[]") from None
            out.append(0)

        return put_map


def _again(record: Sequence[Put]) -> Put:
    """A record within itself."""

    def put_again(value: Any, out: Output) -> None:
        out.levels += 1
        if out.levels > MESSAGE_LEVELS:
            raise MisfitError(f"its records are in one another for more than {MESSAGE_LEVELS} levels")
        record[0](value, out)
        out.levels -= 1

    return put_again


def _converted(logical: LogicalTypes, put: Put) -> Put:
    plain = logical.plain
    return lambda value, out: put(plain(value), out)


def _items(value: Any) -> list[Any]:
    """The items of any sequence. Sets are none: they have no order."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        raise wrong(value, "list, as an Avro array takes it")
    if isinstance(value, Sequence):
        return list(value)
    if hasattr(value, "tolist") and getattr(value, "ndim", 1) == 1:  # of NumPy, and of the module array
        found = value.tolist()
        if isinstance(found, list):
            return found
    raise wrong(value, "list, as an Avro array takes it")


def _put_long(number: int, out: Output) -> None:
    number = (number << 1) ^ (number >> 63)
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _integer(kind: str, bits: int) -> Put:
    least, most = -(1 << bits), (1 << bits) - 1

    def put_integer(value: Any, out: Output) -> None:
        if type(value) is not int:
            value = _whole(value, kind)
        if not least <= value <= most:
            raise MisfitError(f"{value} is out of the range of Avro's {kind}, -2^{bits} to 2^{bits} - 1")
        value = (value << 1) ^ (value >> 63)
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)

    return put_integer


def _whole(value: Any, kind: str) -> int:
    if is_whole(value):
        return operator.index(value)
    raise wrong(value, f"Avro {kind}")


def _real(value: Any, kind: str) -> float:
    """The number as a float that equals it."""
    if is_number(value):
        try:
            number = float(value)
        except OverflowError:
            raise MisfitError(f"{shown(value)} is out of the range of Avro's {kind}") from None
        if number == value or number != number:
            return number
        raise MisfitError(f"{shown(value)} is no Avro {kind}: the nearest one is {number!r}")
    raise wrong(value, f"Avro {kind}")


def _put_double(value: Any, out: Output) -> None:
    out += _DOUBLE.pack(value if type(value) is float else _real(value, "double"))


def _put_float(value: Any, out: Output) -> None:
    """A float is rounded to the nearest one of 32 bits, as everywhere. Beyond their range, and where nothing would be
    left of it, it is none; and neither is an integer that would become another one."""
    number = value if type(value) is float else _real(value, "float")
    try:
        data = _FLOAT.pack(number)
    except OverflowError:
        raise MisfitError(f"{value} is out of the range of Avro's float, about 3.4e38") from None
    (found,) = _FLOAT.unpack(data)
    if found != number and ((not found and isfinite(number)) or is_whole(value)):
        raise MisfitError(f"{value} is no Avro float: the nearest one is {found!r}")
    out += data


def _put_null(value: Any, out: Output) -> None:
    if value is not None:
        raise wrong(value, "Avro null")


def _put_boolean(value: Any, out: Output) -> None:
    if value is True or value is False:
        out.append(value)
    elif type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        out.append(bool(value))
    else:
        raise wrong(value, "Avro boolean")


def _put_string(value: Any, out: Output) -> None:
    if not isinstance(value, str):
        raise wrong(value, "Avro string")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise MisfitError(f"{shown(value)} is no text: {error.reason}") from None
    _put_long(len(data), out)
    out += data


def _put_bytes(value: Any, out: Output) -> None:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise wrong(value, "Avro bytes")
    data = bytes(value)
    _put_long(len(data), out)
    out += data


_PLAIN: Mapping[str, Put] = {
    "null": _put_null,
    "boolean": _put_boolean,
    "float": _put_float,
    "double": _put_double,
    "string": _put_string,
    "bytes": _put_bytes,
}


def _enum(definition: Any) -> Put:
    indexes = {symbol: number for number, symbol in enumerate(definition["symbols"])}
    name = definition["name"]

    def put_enum(value: Any, out: Output) -> None:
        index = indexes.get(str.__str__(value)) if isinstance(value, str) else None
        if index is None:
            raise wrong(value, f"symbol of the Avro enum `{name}`: {', '.join(indexes)}")
        _put_long(index, out)

    return put_enum


def _fixed(definition: Any) -> Put:
    name, size = definition["name"], fixed_size(definition)

    def put_fixed(value: Any, out: Output) -> None:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise wrong(value, f"bytes, as the Avro fixed `{name}` takes them")
        data = bytes(value)
        if len(data) != size:
            raise MisfitError(f"it has {len(data)} bytes, and the Avro fixed `{name}` has {size}")
        out += data

    return put_fixed


def fixed_size(definition: Any) -> int:
    """The size of a fixed type. Raises ValueError if it is none."""
    size = definition["size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"the fixed type `{definition['name']}` has the size {size!r}")
    return size
