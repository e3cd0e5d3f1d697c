"""Rows of a schema as JSON objects, many at once: read into columns, and written from them.

Single values are written for a reader as well: what JSON lacks is a text there.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from penstock.arrays import types
from penstock.base.budgets import MessageBudget, check_numbers_as_keys
from penstock.base.exact_json import decimal_of, json_decimal

Problems: TypeAlias = Mapping[int, str]
"""Row → the reason why it does not fit the schema."""

_TIME = Annotated[datetime, msgspec.Meta(tz=True)] | int
_LOCAL = Annotated[datetime, msgspec.Meta(tz=False)]
OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


class JsonRows:
    """Reads and writes the rows of a schema. Fields that it does not have are passed over; one that a row lacks is
    null.

    A timestamp with a zone is text with a zone, or epoch milliseconds; one without is text without. A date is text, a
    decimal text or a number, bytes are Base64; a time or a duration is an integer in its unit, and a map an object.
    """

    def __init__(self, fields: Sequence[pa.Field], required: Collection[str] = ()) -> None:
        """
        Args:
            fields: of the rows.
            required: the names of those that must not be null.

        Raises:
            TypeError: values of a field's type have no JSON.
        """
        self.type = pa.struct(list(fields))
        self._fields = [_Field(field, f"f{n}", field.name in required) for n, field in enumerate(fields)]
        self._written = pa.struct([pa.field(field.name, _wire(field.type, field.name)) for field in fields])
        kinds = [(each.attribute, _python(each.kind) | None, None) for each in self._fields]
        row = msgspec.defstruct("Row", kinds, rename={each.attribute: each.name for each in self._fields}, gc=False)
        decode = msgspec.json.Decoder(row, float_hook=decimal_of).decode
        spend = types.spend_of(self.type, lambda value, number, _: getattr(value, f"f{number}"))
        has_keys = any(map(_has_large_keys, self.type))
        self._decode = decode if spend is None and not has_keys else _within(decode, spend, has_keys)
        self._absent = row()
        self._names = [field.name for field in fields]
        self._required = tuple(required)
        self._unbounded = [field.name for field in fields if pa.types.is_uint64(field.type)]
        self._fits = types.row_fits(fields, finite=True)
        times = [n for n, each in enumerate(self._fields) if pa.types.is_timestamp(each.kind)]
        self._texts = [n for n in times if self._fields[n].kind.unit == "ns"]
        self._zoned = [n for n in times if self._fields[n].has_zone and n not in self._texts]
        self._maps = "strict" if any(map(types.has_map, self._written)) else None

    def read(self, values: Sequence[bytes | None]) -> tuple[pa.StructArray, Problems]:
        """The rows of these values, null where there is no value or the value has a problem; and the problems."""
        rows, problems = self._rows(values)
        columns = []
        for field in self._fields:
            column, refused = field.column(rows)
            columns.append(column)
            for row, reason in refused.items():
                if values[row] is not None:
                    problems.setdefault(row, reason)
        mask = None
        if problems or None in values:
            mask = pa.array([value is None or row in problems for row, value in enumerate(values)], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask), problems

    def _rows(self, values: Sequence[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        decode, absent = self._decode, self._absent
        try:
            return [absent if value is None else decode(value) for value in values], {}
        except Exception:  # also RecursionError, for what is nested too deeply where nobody looks
            problems: dict[int, str] = {}
        rows = []
        for number, value in enumerate(values):
            try:
                rows.append(absent if value is None else decode(value))
            except Exception as error:
                rows.append(absent)
                problems[number] = f"{error}{_zone_advice(str(error))}"
        return rows, problems

    def write_one(self, row: Mapping[str, Any]) -> bytes | None:
        """The JSON of a dict that is a row of the fields as it is; None if Arrow has to make one of it."""
        if self._fits is None or not self._fits(row):
            return None
        return b"%b" % orjson.dumps({name: row.get(name) for name in self._names})

    def read_one(self, data: bytes) -> dict[str, Any] | None:
        """The row as a dict; None if Arrow has to make one, or it does not fit."""
        if self._fits is None:
            return None
        try:
            row = self._decode(data)
        except Exception:  # Arrow says what is wrong
            return None
        found = {field.name: getattr(row, field.attribute) for field in self._fields}
        if self._unbounded and any((found[name] or 0) >= 1 << 64 for name in self._unbounded):
            return None
        return None if any(found[name] is None for name in self._required) else found

    def write(self, rows: pa.StructArray) -> list[bytes | None]:
        """Each row as a JSON object, None for a null.

        Raises:
            ValueError: a row has a NaN or an infinity, which JSON does not have.
        """
        for column, field in zip(rows.flatten(), self._fields, strict=True):
            if not types.is_finite(column):
                raise ValueError(f"field `{field.name}` has a NaN or an infinity, which JSON does not have")
        plain = self._with_texts(rows).cast(self._written).to_pylist(maps_as_pydicts=self._maps)
        for number in self._zoned:
            name = self._names[number]
            for row in types.with_odd_offset(rows.field(number)):
                if plain[row] is not None:
                    plain[row][name] = plain[row][name].astimezone(UTC)
        dump: Callable[..., bytes] = orjson.dumps
        return [None if row is None else b"%b" % dump(row, json_value, OPTIONS) for row in plain]

    def _with_texts(self, rows: pa.StructArray) -> pa.StructArray:
        """The rows with texts in place of nanoseconds, which a `datetime` does not have."""
        if not self._texts:
            return rows
        columns = rows.flatten()
        for number in self._texts:
            columns[number] = types.texts_of(columns[number])
        mask = rows.is_null() if rows.null_count else None
        return pa.StructArray.from_arrays(columns, names=self._names, mask=mask)


def json_value(value: Any) -> Any:
    """The replacement for a value that JSON does not have."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _within(decode: Callable[[bytes], Any], spend: types.Spend | None, has_keys: bool) -> Callable[[bytes], Any]:
    """Reads rows whose values may be larger than their bytes."""

    def decode_within(data: bytes) -> Any:
        if has_keys:
            check_numbers_as_keys(data)
        row = decode(data)
        if spend is not None:
            spend(row, MessageBudget(len(data)))
        return row

    return decode_within


def _has_large_keys(field: pa.Field) -> bool:
    """True if a map in the field has keys of which any number may have the same hash."""
    kind = field.type
    if pa.types.is_map(kind) and pa.types.is_uint64(kind.key_type):
        return True
    return pa.types.is_nested(kind) and any(_has_large_keys(kind.field(n)) for n in range(kind.num_fields))


class _Field:
    """A field, and how its column is made of decoded rows."""

    def __init__(self, field: pa.Field, attribute: str, required: bool) -> None:
        self.name = field.name
        self.kind = field.type
        self.wire = _wire(field.type, field.name)
        self.attribute = attribute
        self._required = required
        self._get = attrgetter(attribute)
        self._taken = _taken(field.type)
        self.has_zone = types.has_zone(field.type)

    def column(self, rows: Sequence[Any]) -> tuple[pa.Array, Mapping[int, str]]:
        """The column, and the rows whose value does not fit, with the reason; it is null there."""
        cells = [*map(self._get, rows)]
        refused: dict[int, str] = {}
        try:
            column = self._array(cells)
        except Exception:
            single = []
            for row, cell in enumerate(cells):
                try:
                    single.append(self._array([cell]))
                except Exception as error:
                    single.append(self._array([None]))
                    refused[row] = self._misfit(error)
            column = pa.concat_arrays(single)
        if self.has_zone:
            for row, reason in types.without_object(column).items():
                refused[row] = self._misfit(reason)
        if self._required and column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                refused.setdefault(row, f"field `{self.name}` must not be null")
        return column, refused

    def _misfit(self, error: Exception) -> str:
        return f"field `{self.name}` does not fit {self.kind}: {error}"

    def _array(self, cells: list[Any]) -> pa.Array:
        taken = self._taken
        column = pa.array(cells if taken is None else [*map(taken, cells)], self.wire)
        return column if self.wire == self.kind else column.cast(self.kind)


def _wire(kind: pa.DataType, name: str, *, nested: bool = False) -> pa.DataType:
    """The type from which a value is written, and to which it is read."""
    if nested and pa.types.is_timestamp(kind) and kind.unit == "ns":
        raise TypeError(
            f"field `{name}` has nested values of the type {kind}, which have no JSON here: use microseconds"
        )
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _wire(field.type, name, nested=True)) for field in kind])
    if pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) or pa.types.is_integer(kind.key_type)):
            raise TypeError(f"field `{name}` has a map with keys of {kind.key_type}, which JSON does not have")
        return pa.map_(kind.key_type, _wire(kind.item_type, name, nested=True))
    if any(is_one(kind) for is_one in _LISTS):
        inner = _wire(kind.value_type, name, nested=True)
        return pa.list_(inner, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.list_(inner)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return kind
    for is_one, wire in _WIRES:
        if is_one(kind):
            return wire or kind
    raise TypeError(f"field `{name}` has the type {kind}, whose values have no JSON")


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


_WIRES: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType | None]] = (
    (pa.types.is_timestamp, pa.string()),  # Python's times have microseconds
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_time32, pa.int32()),
    (pa.types.is_float16, pa.float32()),
    *((is_one, None) for is_one in _PLAIN),
)


def _python(kind: pa.DataType) -> Any:
    """The type of Python that a JSON value must fit."""
    if pa.types.is_map(kind):
        return dict[_python(kind.key_type), _python(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = [(f"f{n}", _python(field.type) | None, None) for n, field in enumerate(kind)]
        return msgspec.defstruct("Struct", fields, rename={f"f{n}": field.name for n, field in enumerate(kind)})
    if pa.types.is_nested(kind):
        return list[_python(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_time(kind):
        return Annotated[int, msgspec.Meta(ge=0, lt=types.times_in_a_day(kind))]
    if pa.types.is_integer(kind) or pa.types.is_duration(kind):
        signed = not pa.types.is_unsigned_integer(kind)
        least = -(2 ** (kind.bit_width - 1)) if signed else 0
        most = 2 ** (kind.bit_width - signed) - 1
        if most >= 1 << 63:  # msgspec takes no larger bound
            return Annotated[int, msgspec.Meta(ge=0)] if not signed else int
        return Annotated[int, msgspec.Meta(ge=least, le=most)]
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            return str if kind.tz is None else str | int
        return _LOCAL if kind.tz is None else _TIME
    return next((found for fits, found in _SIMPLE if fits(kind)), str)


_SIMPLE = (
    (pa.types.is_null, type(None)),
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_fixed_size_binary, bytes),
    (pa.types.is_date, date),
    (pa.types.is_decimal, Any),  # a Decimal of msgspec takes `1_0.5` and digits of any script
)


def _taken(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Gives a decoded value as Arrow takes it for this type, and raises if it does not fit. None: it is as it is."""
    if pa.types.is_timestamp(kind):
        return (
            None if kind.tz is None else types.text_from_milliseconds if kind.unit == "ns" else types.from_milliseconds
        )
    if pa.types.is_map(kind):
        item = _taken(kind.item_type) or _itself
        return lambda value: None if value is None else [(key, item(each)) for key, each in value.items()]
    if pa.types.is_struct(kind):
        parts = [(attrgetter(f"f{n}"), _taken(field.type) or _itself) for n, field in enumerate(kind)]
        return lambda value: None if value is None else tuple(take(get(value)) for get, take in parts)
    if pa.types.is_nested(kind):
        element = _taken(kind.value_type)
        return element and (lambda value: None if value is None else [*map(element, value)])
    if pa.types.is_decimal(kind):
        fit = types.decimal_fit(kind)
        return lambda value: fit(json_decimal(value))
    return types.fit_of(kind)


def _itself(value: Any) -> Any:
    return value


def _zone_advice(problem: str) -> str:
    if "with a timezone component" in problem:
        return ". Write the time with its zone, as 2024-01-01T00:00:00Z, or declare a time without one as TIMESTAMP_NTZ"
    if "with no timezone component" in problem:
        return ". Write the time without a zone, or declare the column as TIMESTAMP"
    return ""


def json_form(value: Any) -> Any:
    """An object as JSON has it: what JSON lacks becomes a text, as in the rows of an output."""
    if isinstance(value, list | tuple):
        return [json_form(each) for each in value]
    if isinstance(value, dict):
        return {key: json_form(each) for key, each in value.items()}
    if isinstance(value, Decimal | bytes | timedelta):
        return json_value(value)
    if isinstance(value, date | time):
        return orjson.loads(orjson.dumps(value, json_value, OPTIONS))
    return value


def shown_row(rows: pa.StructArray) -> bytes | None:
    """The first row as JSON for a reader, also where a value has none: such a field is a text."""
    if not rows[0].is_valid:
        return None
    cells = zip((field.name for field in rows.type), rows.flatten(), strict=True)
    return b"%b" % orjson.dumps({name: _shown(column[0]) for name, column in cells})


def _shown(cell: pa.Scalar) -> Any:
    try:
        value = cell.as_py()
        return orjson.Fragment(orjson.dumps(value, json_value, OPTIONS)) if value == value else str(value)
    except Exception:
        try:
            return cell.cast(pa.string()).as_py()
        except pa.ArrowException:
            return f"a value of the type {cell.type}"
