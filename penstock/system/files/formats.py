"""The rows of data files, as JSON: one message for each row.

A file is opened by its name, packed or not. It has Parquet, lines of JSON, or CSV; a cell of CSV is text, until a
schema says what it is.
"""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.parquet
from pyarrow import fs

from penstock.base.budgets import LINE_BYTES, check_budget
from penstock.base.wording import counted
from penstock.errors import ConfigError, CorruptError
from penstock.system.rows import messages
from penstock.system.rows.reader import opened_parquet, row_batches

Numbered: TypeAlias = tuple[int, bytes]
"""A row as JSON, and the number of its line, from 1."""

PACKED: Mapping[str, str] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
BLOCK = 1 << 20
BLANK_LINES = 1_000_000
"""The most blank lines in a row: a packed file may hold any number of them, and give nothing."""


class SourceFile(NamedTuple):
    """A data file that is being read."""

    system: fs.FileSystem
    path: str
    """A path by which the file system opens it."""
    title: str
    """Its URL or path, for errors."""
    name: str
    """Its path below the folder of the stream, by which people know it."""
    added: messages.Columns
    """The columns that its path gives."""

    def opened(self) -> pa.NativeFile:
        """Its bytes, unpacked if its name says that they are packed."""
        packed = next((kind for ending, kind in PACKED.items() if self.name.lower().endswith(ending)), None)
        return self.system.open_input_stream(self.path, compression=packed, buffer_size=BLOCK)


def json_lines(stream: Any, path: str) -> Iterator[Numbered]:
    """Each line is a message, unchanged. Blank lines are passed over. Raises CorruptError if a line is too long."""
    blank = 0
    for number, line in enumerate(_lines(stream, path), 1):
        if line := line.strip():
            blank = 0
            yield number, line
        else:
            blank += 1
            if blank > BLANK_LINES:
                check_budget(blank, BLANK_LINES, f"`{path}`, up to line {number:,},", "blank lines in a row")


def _lines(stream: Any, path: str) -> Iterator[bytes]:
    begin = stream.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
    parts: list[bytes] = []
    size, ended = 0, 0
    while block := begin + stream.read(BLOCK):
        begin = b""
        end, *others = block.split(b"\n")
        parts.append(end)
        size += len(end)
        check_budget(size, LINE_BYTES, f"line {ended + 1:,} of `{path}`")
        if others:
            *lines, rest = others
            yield b"".join(parts)
            yield from lines
            ended += len(others)
            parts, size = [rest], len(rest)
    yield b"".join(parts)


MOST_COLUMNS = 20_000
_HEADER_CHARACTERS = 1 << 20
_END = "end of file"
"""Follows the last line, as a row of its own, unless the quote before it is not closed."""


def csv_rows(file: SourceFile, schema: pa.Schema | None, first: int = 0) -> Generator[Numbered, None, None]:
    """The rows of a file as JSON. A row that does not fit its header is a message that no serde takes
    (`failed_row`); blank lines are passed over.

    Args:
        schema: the columns that are wanted, with their types; None: all of them, as text.
        first: the number of the first row to read, from 0.

    Raises:
        CorruptError: the header is none, or a row has no end.
    """
    with closing(_Records(file)) as records:
        if not (names := records.header()):
            return
        made = _rows_of(names, messages.typed_values(file.added, schema), schema)
        for line, row in islice(records, first, None):
            problem = ""
            if isinstance(row, str):
                problem = row
            elif len(row) != len(names):
                problem = f"it has {counted(len(row), 'cell')}, and the header has {len(names)}"
            else:
                try:
                    yield line, made(row)
                    continue
                except TypeError:
                    problem = "it is not UTF-8"
            yield line, messages.failed_row(file.name, f"line {line}", problem, records.text)


def header_of(file: SourceFile) -> Sequence[str]:
    """The names of the columns; none if the file has no rows. Raises CorruptError if they are no header."""
    with closing(_Records(file)) as records:
        return records.header()


def _rows_of(names: Sequence[str], added: dict[str, Any], schema: pa.Schema | None) -> Callable[[list[str]], bytes]:
    """Makes the JSON of a row. Raises TypeError if a cell is not Unicode."""
    if schema is None:
        return lambda row: orjson.dumps({**dict(zip(names, [cell or None for cell in row], strict=True)), **added})
    kinds = {field.name: field.type for field in schema if field.name not in added}
    wanted = [(at, name, messages.cell_reader(kinds[name])) for at, name in enumerate(names) if name in kinds]
    return lambda row: orjson.dumps({name: read(row[at]) if row[at] else None for at, name, read in wanted} | added)


class _Records:
    """The records of a file, with the numbers of the lines where they begin. Cells may hold line ends."""

    def __init__(self, file: SourceFile) -> None:
        if csv.field_size_limit() < LINE_BYTES:  # of the whole process; there is no limit for one reader
            csv.field_size_limit(LINE_BYTES)
        self._file = file
        self._stream = io.TextIOWrapper(file.opened(), "utf-8-sig", "surrogateescape", newline="")
        self._lines: list[str] = []
        """The lines of the record that is read."""
        self._ended = 0
        """The number of lines before it."""
        self._is_over = False
        self._reader = csv.reader(self._feed())

    def close(self) -> None:
        self._stream.close()

    @property
    def text(self) -> str:
        """The record that was read last, as it is in the file."""
        return "".join(self._lines).rstrip("\r\n")

    def header(self) -> Sequence[str]:
        """The first record that is not blank; empty if there is none."""
        for line, row in self:
            if isinstance(row, str):
                raise self._broken(f"its header, line {line}, is not CSV: {row}")
            if not self.text.strip():
                continue
            check_budget(len(self.text), _HEADER_CHARACTERS, f"the header of `{self._file.title}`")
            check_budget(len(row), MOST_COLUMNS, f"the header of `{self._file.title}`", "columns")
            twice = [name for name, count in Counter(row).items() if count > 1]
            if twice:
                raise self._broken(
                    f"its header, line {line}, has the column `{twice[0]}` twice, and a row has each column once: give "
                    "them different names"
                )
            try:
                self.text.encode()
            except UnicodeEncodeError as error:
                raise self._broken(f"its header, line {line}, is not UTF-8: save it as UTF-8") from error
            return row
        return ()

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        """Each record with the number of its first line, from 1; in place of a record that is not CSV, the problem."""
        blank = 0
        while True:
            self._ended += len(self._lines)
            self._lines.clear()
            line = self._ended + 1
            try:
                row: list[str] | str = next(self._reader)
            except csv.Error as error:
                row = str(error)
            if self._is_over:
                if row == [_END]:
                    return
                raise self._broken(f"the row in line {line} opens a quote that is not closed")
            if row:
                blank = 0
                yield line, row
            else:
                blank += 1
                if blank > BLANK_LINES:
                    what = f"`{self._file.title}`, up to line {line:,},"
                    check_budget(blank, BLANK_LINES, what, "blank lines in a row")

    def _broken(self, problem: str) -> CorruptError:
        return CorruptError(f"`{self._file.title}` cannot be read: {problem}")

    def _feed(self) -> Iterator[str]:
        size, lines = 0, self._lines
        while line := self._stream.readline(LINE_BYTES + 1):
            size = len(line) if not lines else size + len(line)
            lines.append(line)
            what = f"the row in line {self._ended + 1:,} of `{self._file.title}`"
            check_budget(size, LINE_BYTES, what)
            check_budget(len(lines), BLANK_LINES, what, "lines")
            yield line
        self._is_over = True
        yield _END


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
        for batch in row_batches(opened, first, messages.ROWS):
            yield from enumerate(messages.readable_rows(file.name, batch, row, file.added), row)
            row += batch.num_rows


def _json(file: SourceFile, schema: pa.Schema | None, first: int) -> Generator[Numbered, None, None]:
    added = orjson.dumps(messages.typed_values(file.added, schema))[1:]
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
            yield messages.fitted_rows(batch, schema, file.added, file.title)


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
        return b"".join(line + b"\n" for line in messages.as_json(batch, {}))
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_batches([batch]), sink)
    return bytes(sink.getvalue())
