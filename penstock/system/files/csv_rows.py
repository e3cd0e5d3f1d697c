"""The rows of CSV. A cell is text, until a schema says what it is."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from penstock.base.budgets import LINE_BYTES, check_budget
from penstock.base.wording import counted
from penstock.errors import CorruptError
from penstock.system.files.text import BLANK_LINES, Numbered, SourceFile
from penstock.system.rows.cells import cell_reader, typed_values
from penstock.system.rows.messages import failed_row

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
        made = _rows_of(names, typed_values(file.added, schema), schema)
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
            yield line, failed_row(file.name, f"line {line}", problem, records.text)


def header_of(file: SourceFile) -> Sequence[str]:
    """The names of the columns; none if the file has no rows. Raises CorruptError if they are no header."""
    with closing(_Records(file)) as records:
        return records.header()


def _rows_of(names: Sequence[str], added: dict[str, Any], schema: pa.Schema | None) -> Callable[[list[str]], bytes]:
    """Makes the JSON of a row. Raises TypeError if a cell is not Unicode."""
    if schema is None:
        return lambda row: orjson.dumps({**dict(zip(names, [cell or None for cell in row], strict=True)), **added})
    kinds = {field.name: field.type for field in schema if field.name not in added}
    wanted = [(at, name, cell_reader(kinds[name])) for at, name in enumerate(names) if name in kinds]
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
