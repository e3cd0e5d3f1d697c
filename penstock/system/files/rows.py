"""Messages as rows of a schema: checked when they are made, and written as Parquet or lines of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.parquet

from penstock.columns.json_rows import JsonRows
from penstock.errors import ConfigError
from penstock.system.base import RecordLimits
from penstock.system.files.formats import Format, as_json
from penstock.system.files.schema import parse_schema


class RowForm:
    """The rows of a schema, from messages whose values are JSON objects."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError if the text is not a schema."""
        self.schema = parse_schema(text)
        self._rows = JsonRows(list(self.schema))

    def problem(self, value: bytes | None) -> str | None:
        if value is None:
            return "it has no value, and a file has rows alone"
        _, problems = self._rows.read([value])
        return f"its value does not fit the schema: {problems[0]}" if problems else None

    def file(self, values: Sequence[bytes | None], kind: Format) -> bytes:
        """A file of these rows: Parquet, or a line of JSON for each. Raises ConfigError if a value is not a row."""
        rows, problems = self._rows.read(values)
        if problems or None in values:
            bad = next(value for row, value in enumerate(values) if value is None or row in problems)
            raise ConfigError(f"a record cannot be written to a file: {self.problem(bad)}")
        batch = pa.RecordBatch.from_arrays(rows.flatten(), schema=self.schema)
        if kind == "json":
            return b"".join(line + b"\n" for line in as_json(batch, {}))
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(pa.Table.from_batches([batch]), sink)
        return bytes(sink.getvalue())


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

    def refused(self, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> str | None:
        return row_form(self.schema).problem(value)
