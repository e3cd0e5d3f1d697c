"""The rows of data files, as JSON: one message for each row."""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyarrow import fs

from penstock.budgets import LINE_BYTES, check_budget
from penstock.columns.given import converted
from penstock.columns.json_rows import json_value
from penstock.columns.plain import has_map, is_finite
from penstock.errors import ConfigError, CorruptError, IncompatibleError

Format: TypeAlias = Literal["parquet", "json", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "json", "csv")
Columns: TypeAlias = Mapping[str, str | None]

_ENDINGS: Mapping[str, Format] = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
}
_PACKED = (".gz", ".bz2", ".zst", ".lz4")
ROWS = 4096
"""Rows that are read together into JSON."""
COLUMN_ROWS = 1 << 15
"""Rows that are read together into columns."""
_BLOCK = 1 << 20
_HEADER_CHARACTERS = 1 << 20
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def format_of(path: str) -> Format:
    """The format by the end of a file's name. Raises ConfigError if there is none."""
    name = path.rpartition("/")[2].lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    for ending, found in _ENDINGS.items():
        if name.endswith(ending):
            return found
    raise ConfigError(
        f"`{path}`: its name does not say its format; known are {', '.join(_ENDINGS)}. Set `systems.<name>.format` to "
        "parquet, json or csv"
    )


def read_rows(system: fs.FileSystem, path: str, kind: Format, first: int, columns: Columns) -> Iterator[bytes]:
    """The rows of a file from a number on, in order, each as JSON.

    Args:
        first: the number of the first row to read, from 0.
        columns: added to each row.
    """
    read = {"parquet": _parquet, "json": _json, "csv": _csv}[kind]
    return read(system, path, first, columns)


def _parquet(system: fs.FileSystem, path: str, first: int, columns: Columns) -> Iterator[bytes]:
    with _opened(system, path) as file:
        for batch in row_batches(file, first, ROWS):
            check_finite(batch, path)
            yield from as_json(batch, columns)


def _opened(system: fs.FileSystem, path: str) -> pa.parquet.ParquetFile:
    return pa.parquet.ParquetFile(system.open_input_file(path), coerce_int96_timestamp_unit="us")


def row_batches(
    file: pa.parquet.ParquetFile, first: int, rows: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows from the number `first` on."""
    groups: list[int] = []
    skip = first
    for number in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        if not groups and skip >= count:
            skip -= count
        else:
            groups.append(number)
    if not groups:
        return
    for batch in file.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield batch.slice(skip)
        skip = 0


def read_columns(
    system: fs.FileSystem, path: str, first: int, columns: Columns, schema: pa.Schema, rows: int
) -> Iterator[pa.StructArray]:
    """The rows of a Parquet file from a number on, as rows of a schema. Columns that the file lacks are null.

    Raises:
        IncompatibleError: a column has a type that does not fit.
    """
    with _opened(system, path) as file:
        present = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in row_batches(file, first, rows, present):
            yield fitted_rows(batch, schema, columns, path)


def fitted_rows(batch: pa.RecordBatch, schema: pa.Schema, columns: Columns, path: str) -> pa.StructArray:
    """These rows as rows of a schema. Raises IncompatibleError if a column has a type that does not fit."""
    arrays = [_fitted(batch, field, columns, path) for field in schema]
    return pa.StructArray.from_arrays(arrays, fields=list(schema))


def column_names(system: fs.FileSystem, path: str) -> list[str]:
    """The columns of a Parquet file."""
    with _opened(system, path) as file:
        return list(file.schema_arrow.names)


def _fitted(batch: pa.RecordBatch, field: pa.Field, columns: Columns, path: str) -> pa.Array:
    if field.name in columns:
        column = pa.array([columns[field.name]] * batch.num_rows, pa.string())
    elif field.name in batch.schema.names:
        column = batch.column(field.name)
    else:
        return pa.nulls(batch.num_rows, field.type)
    try:
        return converted(column, field.type)
    except ValueError as error:
        raise IncompatibleError(
            f"column `{field.name}` of `{path}` has the type {column.type}, which does not fit {field.type}: {error}. "
            "Declare the column with the type that the files have"
        ) from error


def _csv(system: fs.FileSystem, path: str, first: int, columns: Columns) -> Iterator[bytes]:
    """All columns are text: the application interprets them."""
    with system.open_input_stream(path, compression="detect") as stream:
        header = io.TextIOWrapper(stream, "utf-8-sig", newline="").readline(_HEADER_CHARACTERS + 1)
    check_budget(len(header), _HEADER_CHARACTERS, f"the header of `{path}`")
    try:
        names = next(csv.reader([header]), [])
    except csv.Error as error:
        raise CorruptError(f"`{path}` cannot be read: its header is not CSV: {error}") from error
    if not names:
        return
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    with (
        system.open_input_stream(path, compression="detect") as stream,
        pa.csv.open_csv(stream, parse_options=parse, convert_options=convert) as reader,
    ):
        skip = first
        for batch in reader:
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield from as_json(batch.slice(skip), columns)
            skip = 0


def _json(system: fs.FileSystem, path: str, first: int, columns: Columns) -> Iterator[bytes]:
    """Each line is a message, unchanged. Blank lines are skipped."""
    added = orjson.dumps(dict(columns))[1:]
    skip = first
    with system.open_input_stream(path, compression="detect", buffer_size=_BLOCK) as stream:
        for line in _lines(stream, path):
            if skip:
                skip -= 1
            else:
                yield _with(line, added) if columns else line


def _lines(stream: Any, path: str) -> Iterator[bytes]:
    """Raises CorruptError if a line is too long."""
    begin = stream.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
    parts: list[bytes] = []
    size = 0
    while block := begin + stream.read(_BLOCK):
        begin = b""
        end, *others = block.split(b"\n")
        parts.append(end)
        size += len(end)
        check_budget(size, LINE_BYTES, f"a line of `{path}`")
        if others:
            *lines, rest = others
            for line in (b"".join(parts), *lines):
                if line := line.strip():
                    yield line
            parts, size = [rest], len(rest)
    if rest := b"".join(parts).strip():
        yield rest


def _with(line: bytes, added: bytes) -> bytes:
    """A JSON object with more fields. Any other line is left unchanged: it does not decode as an object either."""
    if not (line.startswith(b"{") and line.endswith(b"}")):
        return line
    own = line[:-1].rstrip()
    return own + (b"" if own == b"{" else b",") + added


def check_finite(batch: pa.RecordBatch, path: str) -> None:
    """Raise IncompatibleError if rows of a file cannot be JSON, because they have a NaN or an infinity."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not is_finite(column):
            raise IncompatibleError(
                f"column `{name}` of `{path}` has a NaN or an infinity, which JSON does not have. Declare the input "
                "with value=ps.Columns(schema): it reads the columns of the file as they are"
            )


def as_json(batch: pa.RecordBatch, columns: Columns) -> Iterator[bytes]:
    arrays = [_without_ns(column) for column in batch.columns]
    maps = "lossy" if any(map(has_map, batch.schema)) else None
    rows = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names).to_pylist(maps_as_pydicts=maps)
    dump: Callable[..., bytes] = orjson.dumps
    for row in rows:
        if columns:
            row.update(columns)
        yield b"%b" % dump(row, json_value, _OPTIONS)


def _without_ns(column: pa.Array) -> pa.Array:
    """Python's times have microseconds."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column
