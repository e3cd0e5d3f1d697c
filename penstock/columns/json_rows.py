"""Rows of a schema as JSON objects, many at once: read into columns, and written from them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from penstock.columns.plain import floats_in, has_map, is_finite, row_fits

Problems: TypeAlias = Mapping[int, str]
"""Row → the reason why it does not fit the schema."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = Annotated[datetime, msgspec.Meta(tz=True)] | int
_LOCAL = Annotated[datetime, msgspec.Meta(tz=False)]
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


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
        kinds = [(each.attribute, _python(each.wire) | None, None) for each in self._fields]
        row = msgspec.defstruct("Row", kinds, rename={each.attribute: each.name for each in self._fields}, gc=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(row).decode
        self._absent = row()
        self._names = [field.name for field in fields]
        self._required = tuple(required)
        self._fits = row_fits(fields, finite=True)
        self._maps = "strict" if any(map(has_map, self._written)) else None

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
        except (msgspec.MsgspecError, ValueError):
            problems: dict[int, str] = {}
        rows = []
        for number, value in enumerate(values):
            try:
                rows.append(absent if value is None else decode(value))
            except (msgspec.MsgspecError, ValueError) as error:
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
        except (msgspec.MsgspecError, ValueError):
            return None
        found = {field.name: getattr(row, field.attribute) for field in self._fields}
        return None if any(found[name] is None for name in self._required) else found

    def write(self, rows: pa.StructArray) -> list[bytes | None]:
        """Each row as a JSON object, None for a null.

        Raises:
            ValueError: a row has a NaN or an infinity, which JSON does not have.
        """
        for column, field in zip(rows.flatten(), self._fields, strict=True):
            if not is_finite(column):
                raise ValueError(f"field `{field.name}` has a NaN or an infinity, which JSON does not have")
        plain = rows.cast(self._written).to_pylist(maps_as_pydicts=self._maps)
        dump: Callable[..., bytes] = orjson.dumps
        return [None if row is None else b"%b" % dump(row, json_value, _OPTIONS) for row in plain]


def json_value(value: Any) -> Any:
    """The replacement for a value that JSON does not have."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


class _Field:
    """A field, and how its column is made of decoded rows."""

    def __init__(self, field: pa.Field, attribute: str, required: bool) -> None:
        self.name = field.name
        self.kind = field.type
        self.wire = _wire(field.type, field.name)
        self.attribute = attribute
        self._required = required
        self._get = attrgetter(attribute)
        self._may_overflow = bool(floats_in(self.kind) - {pa.float64()})
        self._is_plain = not (pa.types.is_nested(self.wire) or pa.types.is_timestamp(self.wire))

    def column(self, rows: Sequence[Any]) -> tuple[pa.Array, Mapping[int, str]]:
        """The column, and the rows whose value does not fit, with the reason; it is null there."""
        cells = [*map(self._get, rows)]
        refused: dict[int, str] = {}
        try:
            column = self._array(cells)
        except _MISFITS:
            single = []
            for row, cell in enumerate(cells):
                try:
                    single.append(self._array([cell]))
                except _MISFITS as error:
                    single.append(self._array([None]))
                    refused[row] = f"field `{self.name}` does not fit {self.kind}: {error}"
            column = pa.concat_arrays(single)
        if self._required and column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                refused.setdefault(row, f"field `{self.name}` must not be null")
        return column, refused

    def _array(self, cells: list[Any]) -> pa.Array:
        plain = cells if self._is_plain else [plain_value(cell, self.wire) for cell in cells]
        column = pa.array(plain, self.wire)
        column = column if self.wire == self.kind else column.cast(self.kind)
        if self._may_overflow and not is_finite(column):
            raise ValueError("a number is out of its range")
        return column


_MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)


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
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        least = -(2 ** (kind.bit_width - 1)) if signed else 0
        most = 2 ** (kind.bit_width - signed) - 1
        if most >= 1 << 63:  # msgspec takes no larger bound
            return Annotated[int, msgspec.Meta(ge=0)] if not signed else int
        return Annotated[int, msgspec.Meta(ge=least, le=most)]
    if pa.types.is_timestamp(kind):
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
    (pa.types.is_decimal, Decimal),
)


def plain_value(value: Any, kind: pa.DataType) -> Any:
    """A decoded value as Arrow takes it for this type."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind) and isinstance(value, int):
        return _EPOCH + timedelta(milliseconds=value)
    if pa.types.is_map(kind):
        return [(key, plain_value(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_struct(kind):
        return tuple(plain_value(getattr(value, f"f{n}"), field.type) for n, field in enumerate(kind))
    if pa.types.is_nested(kind):
        return [plain_value(each, kind.value_type) for each in value]
    return value


def _zone_advice(problem: str) -> str:
    if "with a timezone component" in problem:
        return ". Write the time with its zone, as 2024-01-01T00:00:00Z, or declare a time without one as TIMESTAMP_NTZ"
    if "with no timezone component" in problem:
        return ". Write the time without a zone, or declare the column as TIMESTAMP"
    return ""
