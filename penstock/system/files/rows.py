"""Messages as rows of a schema: checked when they are made, and written as Parquet or lines of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from penstock.errors import ConfigError
from penstock.system.base import RecordLimits
from penstock.system.files.formats import Format, as_json
from penstock.system.files.schema import parse_schema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = Annotated[datetime, msgspec.Meta(tz=True)] | int
_LOCAL = Annotated[datetime, msgspec.Meta(tz=False)]


class RowForm:
    """The rows of a schema, from messages whose values are JSON objects."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError if the text is not a schema."""
        self.schema = parse_schema(text)
        fields = [(f"f{n}", _python(field.type) | None, None) for n, field in enumerate(self.schema)]
        names = {f"f{n}": field.name for n, field in enumerate(self.schema)}
        row = msgspec.defstruct("Row", fields, rename=names)
        self._decode = msgspec.json.Decoder(row).decode
        self._names = list(names)
        self._exact = [_needs_arrow(field.type) for field in self.schema]

    def problem(self, value: bytes | None) -> str | None:
        if value is None:
            return "it has no value, and a file has rows alone"
        try:
            row = self._decode(value)
        except (msgspec.MsgspecError, ValueError) as error:
            return f"its value does not fit the schema: {error}{_zone_advice(str(error))}"
        for name, field, exact in zip(self._names, self.schema, self._exact, strict=True):
            if exact:
                try:
                    pa.array([_plain(getattr(row, name), field.type)], field.type)
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    return f"column `{field.name}` does not fit {field.type}: {error}"
        return None

    def file(self, values: Sequence[bytes | None], kind: Format) -> bytes:
        """A file of these rows: Parquet, or a line of JSON for each. Raises ConfigError if a value is not a row."""
        for value in values:
            if (problem := self.problem(value)) is not None:
                raise ConfigError(f"a record cannot be written to a file: {problem}")
        rows = [self._decode(value or b"") for value in values]
        columns = [
            pa.array([_plain(getattr(row, name), field.type) for row in rows], field.type)
            for name, field in zip(self._names, self.schema, strict=True)
        ]
        if kind == "json":
            return b"".join(
                line + b"\n" for line in as_json(pa.RecordBatch.from_arrays(columns, schema=self.schema), {})
            )
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(pa.Table.from_arrays(columns, schema=self.schema), sink)
        return bytes(sink.getvalue())


def _zone_advice(problem: str) -> str:
    if "with a timezone component" in problem:
        return ". Write the time with its zone, as 2024-01-01T00:00:00Z, or declare a time without one as TIMESTAMP_NTZ"
    if "with no timezone component" in problem:
        return ". Write the time without a zone, or declare the column as TIMESTAMP"
    return ""


@cache
def row_form(text: str) -> RowForm:
    return RowForm(text)


@dataclass(frozen=True, slots=True)
class RowLimits(RecordLimits):
    """The limits of a stream of files: it refuses values that are not rows of its schema."""

    schema: str = ""

    @property
    def least_bytes(self) -> int | None:
        """No record is accepted unchecked."""
        return -1

    def refused(self, key: bytes | None, value: bytes | None) -> str | None:
        return row_form(self.schema).problem(value)


def _python(kind: pa.DataType) -> Any:
    if pa.types.is_nested(kind):
        return _python_of_nested(kind)
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_timestamp(kind):
        return _LOCAL if kind.tz is None else _TIME
    return next((found for fits, found in _SIMPLE if fits(kind)), str)


_SIMPLE = (
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_date, date),
    (pa.types.is_decimal, Decimal),
)


def _python_of_nested(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return list[_python(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[_python(kind.key_type), _python(kind.item_type) | None]  # type: ignore[misc]
    fields = [(f"f{n}", _python(field.type) | None, None) for n, field in enumerate(kind)]
    return msgspec.defstruct("Struct", fields, rename={f"f{n}": field.name for n, field in enumerate(kind)})


def _needs_arrow(kind: pa.DataType) -> bool:
    """True if a value of the right Python type may not fit."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_nested(kind) or pa.types.is_timestamp(kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_timestamp(kind) and isinstance(value, int):
        return _EPOCH + timedelta(milliseconds=value)
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(_plain(key, kind.key_type), _plain(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_struct(kind):
        return tuple(_plain(getattr(value, f"f{n}"), field.type) for n, field in enumerate(kind))
    return value
