"""Messages as rows of a schema, checked when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from penstock.arrays.json_rows import JsonRows
from penstock.errors import ConfigError
from penstock.system.base import RawRecord, RecordLimits
from penstock.system.rows.schema import parse_schema


class RowForm:
    """The rows of a schema, from messages whose values are JSON objects."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows = JsonRows(list(self.schema))
        self._required = [field.name for field in schema if not field.nullable]

    def problem(self, value: bytes | None) -> str | None:
        """The reason why a value is not a row; None if it is one."""
        if value is None:
            return "it has no value, and a file has rows alone"
        rows, problems = self._rows.read([value])
        if problems:
            return f"its value does not fit the schema: {problems[0]}"
        missing = next((name for name in self._required if rows.field(name).null_count), None)
        return None if missing is None else f"its value does not fit the schema: `{missing}` is null, and must not be"

    def batch(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        """These rows. Raises ConfigError if a value is not a row."""
        rows, problems = self._rows.read(values)
        if problems or None in values or any(rows.field(name).null_count for name in self._required):
            bad = next(value for value in values if self.problem(value) is not None)
            raise ConfigError(f"a record cannot be written to a file: {self.problem(bad)}")
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self.schema)


def row_value(record: RawRecord) -> bytes | None:
    """The value of a record. Raises ConfigError if it is not bytes."""
    value = record[2]
    if value is not None and not isinstance(value, bytes):
        raise ConfigError(f"a record's value is bytes, not {type(value).__name__}")
    return value


@cache
def row_form(text: str) -> RowForm:
    """The rows of a schema in Spark's words. Raises ConfigError if the text is none."""
    return RowForm(parse_schema(text))


@cache
def row_form_of(serialized: bytes) -> RowForm:
    """The rows of a schema as Arrow writes it."""
    return RowForm(pa.ipc.read_schema(pa.py_buffer(serialized)))


@dataclass(frozen=True, slots=True)
class RowLimits(RecordLimits):
    """The limits of a stream of rows: it refuses values that are not rows of its schema.

    Args:
        schema: the schema in Spark's words, or as Arrow writes it.
    """

    schema: str | bytes = ""

    @property
    def least_bytes(self) -> int | None:
        """No record is accepted unchecked."""
        return -1

    def refused(self, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> str | None:
        form = row_form(self.schema) if isinstance(self.schema, str) else row_form_of(self.schema)
        return form.problem(value)
