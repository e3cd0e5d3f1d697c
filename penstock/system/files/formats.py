"""The rows of data files, as JSON: one message for each row."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.parquet

from penstock.errors import ConfigError
from penstock.system.files.csv_rows import csv_rows, header_of
from penstock.system.files.text import PACKED, Numbered, SourceFile, json_lines
from penstock.system.rows.cells import typed_values
from penstock.system.rows.messages import ROWS, as_json, fitted_rows, readable_rows
from penstock.system.rows.parquet import opened_parquet, row_batches

Format: TypeAlias = Literal["parquet", "json", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "json", "csv")

_ENDINGS: Mapping[str, Format] = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
}


def format_of(path: str) -> Format:
    """The format by the end of a file's name. Raises ConfigError if there is none."""
    name = path.rpartition("/")[2].lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    for ending, found in _ENDINGS.items():
        if name.endswith(ending):
            return found
    raise ConfigError(
        f"`{path}`: its name does not say its format; known are {', '.join(_ENDINGS)}. Set `systems.<name>.format` to "
        "parquet, json or csv"
    )


def read_rows(file: SourceFile, kind: Format, first: int = 0, schema: pa.Schema | None = None) -> Iterator[bytes]:
    """The rows of a file from a number on, in order, each as JSON.

    Args:
        first: the number of the first row to read, from 0.
        schema: of a text file, the types that its cells and the columns in its path have. Without it, they are text.
    """
    return (row for _, row in numbered_rows(file, kind, schema, first))


def numbered_rows(
    file: SourceFile, kind: Format, schema: pa.Schema | None = None, first: int = 0
) -> Generator[Numbered, None, None]:
    """As `read_rows`, each with the number of its line from 1; in Parquet, with its own number from 0."""
    if kind == "parquet":
        return _parquet(file, first)
    return csv_rows(file, schema, first) if kind == "csv" else _json(file, schema, first)


def _parquet(file: SourceFile, first: int) -> Generator[Numbered, None, None]:
    row = first
    with _opened(file) as opened:
        for batch in row_batches(opened, first, ROWS):
            yield from enumerate(readable_rows(file.name, batch, row, file.added), row)
            row += batch.num_rows


def _json(file: SourceFile, schema: pa.Schema | None, first: int) -> Generator[Numbered, None, None]:
    added = orjson.dumps(typed_values(file.added, schema))[1:]
    with file.opened() as stream:
        for number, line in islice(json_lines(stream, file.title), first, None):
            yield number, _with(line, added) if len(added) > 1 else line


def _opened(file: SourceFile) -> pa.parquet.ParquetFile:
    return opened_parquet(file.system.open_input_file(file.path), file.title)


def read_columns(file: SourceFile, first: int, schema: pa.Schema, rows: int) -> Iterator[pa.StructArray]:
    """The rows of a Parquet file from a number on, as rows of a schema. Columns that the file lacks are null.

    Raises:
        IncompatibleError: a column has a type that does not fit.
    """
    with _opened(file) as opened:
        present = [name for name in schema.names if name in opened.schema_arrow.names]
        for batch in row_batches(opened, first, rows, present):
            yield fitted_rows(batch, schema, file.added, file.title)


def column_names(file: SourceFile, kind: Format) -> Sequence[str] | None:
    """The columns of a file; None if its rows have fields of their own."""
    if kind == "json":
        return None
    if kind == "csv":
        return header_of(file)
    with _opened(file) as opened:
        return list(opened.schema_arrow.names)


def _with(line: bytes, added: bytes) -> bytes:
    """A JSON object with more fields. Any other line is left unchanged: it does not decode as an object either."""
    if not (line.startswith(b"{") and line.endswith(b"}")):
        return line
    own = line[:-1].rstrip()
    return own + (b"" if own == b"{" else b",") + added


def file_of(batch: pa.RecordBatch, kind: Format) -> bytes:
    """A file of these rows: Parquet, or a line of JSON for each."""
    if kind == "json":
        return b"".join(line + b"\n" for line in as_json(batch, {}))
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_batches([batch]), sink)
    return bytes(sink.getvalue())
