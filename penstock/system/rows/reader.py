"""Reads ranges of the rows of data files, one file after the other. A cursor is in one file, from an offset on.

Files are opened below their folder alone, and read in batches with as many rows as their bytes allow. Whoever writes a
folder of an input is trusted with messages alone. A link in it could lead to any file that the job's user may read, and
its content would come out in an output. So no link leads out of the folder.

A small file may unpack to any number of bytes: a long text that a thousand rows refer to, or a list of a hundred
million nulls. Parquet's footer says how many values there are, and texts of a dictionary are counted before they are
copied.
"""

from __future__ import annotations

import hashlib
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from penstock.api.ssp import SystemStreamPartition
from penstock.arrays.given import is_bytes, is_text
from penstock.base.budgets import check_budget
from penstock.errors import CorruptError, SystemRefusedError
from penstock.system.base import CHUNK_BYTES, ColumnChunk, OffsetRange, RawMessage, SystemReader
from penstock.system.ranges import check_call, take_chunk
from penstock.system.rows.messages import ROWS

C = TypeVar("C", list[RawMessage], ColumnChunk, ColumnChunk | list[RawMessage])


class RowCursor:
    """The rows of one file, from an offset on: by column, or as JSON."""

    def __init__(
        self,
        ssp: SystemStreamPartition,
        position: int,
        behind: int,
        schema: pa.Schema | None,
        time_ms: int,
        rows: Generator[bytes, None, None],
        columns: Generator[pa.StructArray, None, None] | None,
    ) -> None:
        """
        Args:
            position: the offset of the first row. It grows with each row that is taken.
            behind: the offset behind the file.
            schema: the columns that are wanted, if any are.
            time_ms: the timestamp of each row.
            rows: the rows as JSON. The file is opened when the first one is taken.
            columns: the same rows by column; None if they are not read so.
        """
        self.ssp = ssp
        self.position = position
        self.behind = behind
        self.schema = schema
        self._time_ms = time_ms
        self._rows = rows
        self._columns = columns
        self._left: pa.StructArray | None = None

    @property
    def by_column(self) -> bool:
        """True if the rows are to be taken by column."""
        return self._columns is not None

    def take(self, messages: int, size_bytes: int, end: int) -> list[RawMessage]:
        """The next rows before the offset `end`; none at the end of the file."""
        rows = islice(self._rows, min(messages, end - self.position))
        chunk = take_chunk(
            ((offset, self._time_ms, None, row) for offset, row in enumerate(rows, self.position)), size_bytes
        )
        if chunk:
            self.position = chunk[-1][0] + 1
        return chunk

    def take_columns(self, messages: int, end: int) -> ColumnChunk:
        """As `take`, by column."""
        rows = next(self._columns, None) if self._left is None and self._columns is not None else self._left
        count = 0 if rows is None else min(messages, end - self.position, len(rows))
        if rows is None:
            rows = pa.array([], pa.struct([]))
        self._left = rows.slice(count) if count < len(rows) else None
        offsets = np.arange(self.position, self.position + count, dtype=np.int64)
        self.position += count
        times = np.full(count, self._time_ms, np.int64)
        return ColumnChunk(offsets, times, pa.nulls(count, pa.binary()), rows.slice(0, count))

    def close(self) -> None:
        """Close the file."""
        self._rows.close()
        if self._columns is not None:
            self._columns.close()


Opens = Callable[[int], RowCursor | None]
"""Opens the file with the row at an offset, or else the next one; None if there is none before the end of the range."""


class RowReader(SystemReader):
    """Reads rows from any offset on. It keeps the file open in which the last range ended."""

    def __init__(self) -> None:
        self._cursor: RowCursor | None = None

    @abstractmethod
    def opens(self, offsets: OffsetRange, schema: pa.Schema | None) -> Opens:
        """Look for the files of a range.

        Args:
            schema: the columns that are wanted, if any are.

        Raises:
            NotFoundError: the range is not there.
        """

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._read(offsets, None, lambda cursor: cursor.take(chunk_messages, chunk_bytes, offsets.end))

    def read_columns(
        self, offsets: OffsetRange, schema: pa.Schema, chunk_messages: int
    ) -> Iterator[ColumnChunk | list[RawMessage]]:
        """Rows of files that are not Parquet are messages, whose cells have the types of the schema."""
        check_call(offsets, chunk_messages, CHUNK_BYTES)

        def take(cursor: RowCursor) -> ColumnChunk | list[RawMessage]:
            if cursor.by_column:
                return cursor.take_columns(chunk_messages, offsets.end)
            return cursor.take(min(chunk_messages, ROWS), CHUNK_BYTES, offsets.end)

        return self._read(offsets, schema, take)

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _read(self, offsets: OffsetRange, schema: pa.Schema | None, take: Callable[[RowCursor], C]) -> Iterator[C]:
        """Yields what `take` takes from the files, one after the other."""
        opens = self.opens(offsets, schema)
        position = offsets.start
        while position < offsets.end:
            cursor = self._cursor
            if cursor is None or (cursor.ssp, cursor.position, cursor.schema) != (offsets.ssp, position, schema):
                RowReader.close(self)
                cursor = self._cursor = opens(position)
                if cursor is None:
                    return
            chunk = take(cursor)
            if len(chunk):
                position = cursor.position
                yield chunk
            else:
                position = cursor.behind
                RowReader.close(self)


_OPEN_FILES = Path("/proc/self/fd")


def leads_out(base: str, path: str) -> str | None:
    """The place outside of a folder that a path below it leads to; None if it stays inside."""
    real, inside = os.path.realpath(path), os.path.realpath(base)
    return None if real == inside or real.startswith(f"{inside.rstrip('/')}/") else real


@contextmanager
def opened_inside(base: str, path: str, advice: str = "") -> Iterator[str]:
    """A path of the very file that was found to be below a folder: a link that somebody puts in its place meanwhile
    changes nothing. Systems without `/proc` lack this last step.

    Args:
        base: the folder.
        path: the path of the file, which begins with that of the folder.
        advice: ends the error.

    Raises:
        SystemRefusedError: it leads out of the folder.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe keeps nobody waiting
    try:
        known = _OPEN_FILES / str(descriptor)
        own = str(known) if _OPEN_FILES.exists() else path
        if (outside := leads_out(base, own)) is not None:
            raise refused(path, outside, advice)
        yield own
    finally:
        os.close(descriptor)


def refused(path: str, outside: str, advice: str = "") -> SystemRefusedError:
    """The error for a path that leads out of its folder."""
    return SystemRefusedError(f"`{path}` leads out of its folder, to `{outside}`, and is not read{advice}")


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn whatever Arrow raises over bytes that it does not read into a CorruptError that begins with `what`. Too
    little memory, and errors of the operating system, are not about the bytes: they pass."""
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptError(f"{what}: {error}") from error


BATCH_BYTES = 64 << 20
"""The bytes of the texts that a batch has, or those of one row if these are more."""
GROUP_VALUES = 1 << 24
ROW_VALUES = 1 << 14
"""The most values that the lists of a row group have: so many, and so many more for each row."""
_LOOK_BYTES = 1 << 12
"""Without a buffer, or with one that is filled ahead (`pre_buffer`), Arrow reads a column chunk as soon as it looks at
it."""
_END_BYTES = 1 << 16
"""The end of a file that is read first: most footers are in it."""
_MARK = b"PAR1"
_MOST_CHECKED = 4096
_SHORT_BYTES = 1 << 13
"""No batch becomes too large by texts that are shorter."""


def opened_parquet(source: IO[bytes] | pa.NativeFile, title: str) -> pa.parquet.ParquetFile:
    """A file whose batches `row_batches` gives.

    Args:
        source: the open file.
        title: its name, for errors.

    Raises:
        CorruptError: lists have more values than are read, or the description of a column is damaged.
    """
    size = source.seek(0, os.SEEK_END)
    footer = _footer(source, size)
    if footer is None:
        return pa.parquet.ParquetFile(source)  # Arrow says what is wrong
    metadata = pa.parquet.read_metadata(pa.BufferReader(footer))
    known = hashlib.sha256(footer + size.to_bytes(8, "little")).digest()
    repeated = _CHECKED.get(known)
    if repeated is None:
        repeated = _checked(source, metadata, title)
        _CHECKED.put(known, repeated)
    return pa.parquet.ParquetFile(
        source, metadata=metadata, read_dictionary=list(repeated), coerce_int96_timestamp_unit="us"
    )


class _CheckedFooters:
    """The footers that were checked last, each with the columns that may refer to one long text in many rows.

    Each batch opens its files again, and a check takes as long as Arrow needs to prepare the reading of each column
    chunk. A check looks at the footer and at the size of the file, and at nothing else. So a file that is replaced is
    checked again, whatever its name and its time are.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[str, ...]] = {}
        self._lock = threading.Lock()

    def get(self, known: bytes) -> tuple[str, ...] | None:
        with self._lock:
            return self._found.get(known)

    def put(self, known: bytes, repeated: tuple[str, ...]) -> None:
        with self._lock:
            while len(self._found) >= _MOST_CHECKED:
                del self._found[next(iter(self._found))]
            self._found[known] = repeated


_CHECKED = _CheckedFooters()


def _footer(source: IO[bytes] | pa.NativeFile, size: int) -> bytes | None:
    """The footer of a Parquet file with its length and mark, by as many reads as Arrow makes; None if there is none."""
    end = _read_at(source, max(0, size - _END_BYTES), size)
    count = int.from_bytes(end[-8:-4], "little") + 8
    if not end.endswith(_MARK) or count > size:
        return None
    return end[-count:] if count <= len(end) else _read_at(source, size - count, size)


def _read_at(source: IO[bytes] | pa.NativeFile, begin: int, end: int) -> bytes:
    source.seek(begin)
    return bytes(source.read(end - begin))


def _checked(source: IO[bytes] | pa.NativeFile, metadata: Any, title: str) -> tuple[str, ...]:
    """Check what a footer says, and give the columns that may refer to one long text in many rows."""
    _check_chunks(source, metadata, title)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    schema, repeated = metadata.schema, set()
    for number in range(len(schema)):
        leaf = schema.column(number)
        for group in groups:
            chunk = group.column(number)
            if leaf.max_repetition_level:
                most = GROUP_VALUES + ROW_VALUES * group.num_rows
                check_budget(chunk.num_values, most, f"the lists of column `{leaf.path}` of `{title}`", "values")
            elif _may_repeat(leaf, chunk) and "." not in leaf.path:
                repeated.add(leaf.path)
    return tuple(sorted(repeated))


def _check_chunks(source: IO[bytes] | pa.NativeFile, metadata: Any, title: str) -> None:
    """Let Arrow look at the description of each column chunk as it does before it reads: there it raises an error.
    Somebody who asks for the description alone, as `_checked` does, ends the process if it is damaged."""
    if not metadata.num_columns:  # Arrow would divide by the number of rows of a batch
        return
    file = pa.parquet.ParquetFile(source, metadata=metadata, buffer_size=_LOOK_BYTES, pre_buffer=False)
    try:
        for number in range(metadata.num_row_groups):
            next(file.reader.iter_batches(0, row_groups=[number], use_threads=False), None)
    except OSError as error:
        if error.errno is not None:
            raise
        raise CorruptError(f"`{title}` is damaged: {error}") from error


def row_batches(
    file: pa.parquet.ParquetFile, first: int, rows: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows from the number `first` on.

    Args:
        file: from `opened_parquet`.
        first: the number of the first row, from 0.
        rows: the most rows of a batch.
        columns: their names; None reads all.
    """
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
    for batch in file.iter_batches(_fewer(file, groups, rows), row_groups=groups, columns=columns, use_threads=False):
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield from _pieces(batch.slice(skip))
        skip = 0


def _may_repeat(leaf: Any, chunk: Any) -> bool:
    """True if a column chunk may have a long text that many rows refer to."""
    is_long = chunk.total_uncompressed_size > _SHORT_BYTES
    return bool(chunk.has_dictionary_page and leaf.physical_type == "BYTE_ARRAY" and is_long)


def _may_share(chunk: Any) -> bool:
    """True if texts of a column chunk may begin with those before them, which are then not written again."""
    return "DELTA_BYTE_ARRAY" in chunk.encodings and chunk.total_uncompressed_size > _SHORT_BYTES


def _fewer(file: pa.parquet.ParquetFile, groups: Sequence[int], rows: int) -> int:
    """The most rows of a batch, by the bytes that rows have on average. A text inside of a struct or a list may come in
    each row, and is as long as its dictionary at most."""
    for number in groups:
        group = file.metadata.row_group(number)
        rows = min(rows, BATCH_BYTES * max(group.num_rows, 1) // max(group.total_byte_size, 1))
        for place in range(len(file.schema)):
            leaf, chunk = file.schema.column(place), group.column(place)
            if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
                rows = min(rows, BATCH_BYTES // max(leaf.length, 1))
            elif _may_share(chunk) or ("." in leaf.path and _may_repeat(leaf, chunk)):
                rows = min(rows, BATCH_BYTES // max(chunk.total_uncompressed_size, 1))
    return max(rows, 1)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch with texts in place of references to them, in pieces that are not too large."""
    found = [column for column in batch.columns if _is_repeated(column)]
    if not found:
        yield batch
        return
    ends = np.cumsum(sum(_sizes(column) for column in found))
    begin = 0
    while begin < batch.num_rows:
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
        piece = batch.slice(begin, end - begin)
        columns = [each.dictionary_decode() if _is_repeated(each) else each for each in piece.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        begin = end


def _is_repeated(column: pa.Array) -> bool:
    kind = column.type
    return pa.types.is_dictionary(kind) and (is_text(kind.value_type) or is_bytes(kind.value_type))


def _sizes(column: pa.DictionaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The bytes of the text of each row."""
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False), np.int64)
