"""A table as a stream: its commits, the data files that they added, and the offsets of the rows.

    offset    27 bits: number of the commit | 1 bit: part | 35 bits: row

Commits have growing numbers, from 1. The part `ADDED` of a commit is the rows that it added. The part `SNAPSHOT` is all
rows that the table had behind the commit. Who begins in a snapshot reads it to its end, and then the later commits;
nobody else reads anything of it. So a table begins, for a reader, with any snapshot that can still be made, and the
rows of a later commit have the same offsets wherever the reader began. Number 0 is the table before its first commit.

A row's number counts those before it in its partition and part: files in their order, and all rows of each file.
"""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa

from penstock.errors import IncompatibleError, NotFoundError

ROW_BITS = 35
SNAPSHOT, ADDED = 0, 1
_LARGEST = (1 << 27) - 1
_KEPT_PARTS = 4
_SHARE = 10

Changes = Literal["refuse", "skip", "added"]
Files = Callable[[], Sequence["DataFile"]]
CHANGES: tuple[Changes, ...] = ("refuse", "skip", "added")


class Place(NamedTuple):
    """An offset in its parts."""

    number: int
    part: int
    row: int


def offset_of(number: int, part: int, row: int = 0) -> int:
    """The offset of a row. Raises IncompatibleError if 64 bits do not hold it."""
    if number > _LARGEST or row >> ROW_BITS:
        raise IncompatibleError(
            f"row {row:,} of commit {number:,} has no offset: a table has at most {_LARGEST:,} commits, and a "
            f"partition of a commit or snapshot at most {1 << ROW_BITS:,} rows"
        )
    return (number << 1 | part) << ROW_BITS | row


def place_of(offset: int) -> Place:
    return Place(offset >> ROW_BITS + 1, offset >> ROW_BITS & 1, offset & (1 << ROW_BITS) - 1)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of the table."""

    path: str
    rows: int | None
    """All rows of the file, deleted ones as well; None if only the file says it."""
    time_ms: int
    """The time at which it was added."""
    known: Any = None
    """Whatever the kind of table needs to read it."""


@dataclass(frozen=True)
class Commit:
    """A commit, and the files that it added to the table's rows. Files of a compaction are not among them."""

    number: int
    time_ms: int
    change: str | None
    """The reason why it is more than an append, such as `DELETE`; None for one that only adds rows."""
    read: Files
    """Finds the files, always in the same order."""

    @cached_property
    def files(self) -> Sequence[DataFile]:
        return self.read()


class TableLog(ABC):
    """The commits of a table, as far as it was looked at. Used by one thread at a time."""

    title: str
    """The table in words, for errors."""
    noun: ClassVar[str]
    """A state of the table, in words."""

    @abstractmethod
    def refresh(self) -> None:
        """Look for new commits. A table that was dropped and made again is seen from its beginning.

        Raises:
            NotFoundError: there is no such table.
            IncompatibleError: it has features that are not read.
            SystemAwayError: its place does not answer.
        """

    @property
    @abstractmethod
    def identity(self) -> str:
        """Tells the table from a later one of its name."""

    @property
    @abstractmethod
    def partitions(self) -> int | None:
        """The number of partitions that is noted in the table."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The newest schema. All rows are read in it."""

    @property
    @abstractmethod
    def head(self) -> int:
        """The number of the newest commit; 0 if there is none."""

    @abstractmethod
    def oldest(self, now_ms: int) -> int:
        """The number of the oldest snapshot that can be made, and behind which all added files are still kept."""

    @abstractmethod
    def number_of(self, name: str) -> int | None:
        """The number of a commit by its name in the table; None if no commit of the table has this name."""

    @abstractmethod
    def name_of(self, number: int) -> str:
        """The name of a commit in the table, as people know it."""

    @abstractmethod
    def snapshot(self, number: int) -> Sequence[DataFile]:
        """All files behind a commit, in the order in which they were added. Raises NotFoundError if it is gone."""

    @abstractmethod
    def commits(self, number: int) -> Iterator[Commit]:
        """The commits from a number on, in order. Raises NotFoundError if one of them is gone."""

    @abstractmethod
    def count(self, file: DataFile) -> int:
        """The number of rows that a file has, by the file itself."""

    @abstractmethod
    def batches(
        self, file: DataFile, first: int, rows: int, columns: Sequence[str] | None
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a file that are not deleted, from a number on, in the table's newest schema.

        Args:
            file: of this table.
            first: the number of the first row to read, among those that are not deleted.
            rows: the most rows of a batch.
            columns: those of the schema to read; None reads all.

        Raises:
            NotFoundError: the file is gone.
            CorruptError: it is damaged.
            IncompatibleError: a column does not fit the newest schema.
        """


class TableLogs:
    """The logs of tables. Each is looked at no more often than is asked for, and for at most a tenth of the time."""

    def __init__(self, open_log: Callable[[str], TableLog], poll_ms: int) -> None:
        self._open = open_log
        self._poll_s = poll_ms / 1000
        self._logs: dict[str, TableLog] = {}
        self._next_look: dict[str, float] = {}

    def get(self, stream: str, end: int = 0) -> TableLog:
        """The log of a stream. It is looked at if that is due, or if the stream was not known to reach the offset
        `end`. Raises as `TableLog.refresh`."""
        log, began = self._logs.get(stream), time.monotonic()
        if log is None:
            log = self._open(stream)
        elif began < self._next_look[stream] and end <= upcoming(log):
            return log
        log.refresh()
        self._logs[stream] = log
        self._next_look[stream] = began + max(self._poll_s, (time.monotonic() - began) * _SHARE)
        return log


def upcoming(log: TableLog) -> int:
    """The first offset of the next commit, in every partition."""
    return offset_of(log.head + 1, ADDED)


def gone(log: TableLog, number: int) -> NotFoundError:
    """The error for a commit or snapshot that is no longer there."""
    return NotFoundError(
        f"{log.title} no longer has {log.noun} {log.name_of(number)}, from which rows were to be read: its history was "
        "cleaned up. To continue with all rows that the table has now, set the startpoint `snapshot`"
    )


class FileRows(NamedTuple):
    """A file, and the offsets of its rows: from `start` to before `end`."""

    file: DataFile
    start: int
    end: int


class PartitionFiles:
    """Finds the files of one partition by offset. Each file is in the partition that a hash of its path gives."""

    def __init__(self, log: TableLog, partition: int, partitions: int, changes: Changes) -> None:
        self._log = log
        self._partition = partition
        self._partitions = partitions
        self._changes = changes
        self._parts: dict[tuple[int, int], tuple[list[DataFile], list[int]]] = {}

    def find(self, position: int, end: int) -> FileRows | None:
        """The file with the first row at or behind a position; None if all such rows are at or behind `end`.

        Raises:
            NotFoundError: a commit or snapshot is gone, from which rows were to be read.
            IncompatibleError: a commit changes rows that were there, and such commits are refused.
        """
        number, part, row = place_of(position)
        if part == SNAPSHOT:
            found = self._behind(number, SNAPSHOT, lambda: self._log.snapshot(number), row)
            if found is not None:
                return found if found.start < end else None
            number, row = number + 1, 0
        for commit in self._log.commits(number):
            if offset_of(commit.number, ADDED) >= end:
                break
            if self.reads(commit):
                first = row if commit.number == number else 0
                found = self._behind(commit.number, ADDED, partial(getattr, commit, "files"), first)
                if found is not None:
                    return found if found.start < end else None
        return None

    def at_time(self, time_ms: int, base: int) -> int | None:
        """The offset of the first row with this timestamp or a later one, from a snapshot on; None if there is none."""
        files, starts = self._part(base, SNAPSHOT, lambda: self._log.snapshot(base))
        for file, start in zip(files, starts, strict=False):
            if file.time_ms >= time_ms:
                return offset_of(base, SNAPSHOT, start)
        for commit in self._log.commits(base + 1):
            if commit.time_ms >= time_ms and any(map(self._is_own, commit.files)):
                return offset_of(commit.number, ADDED)
        return None

    def reads(self, commit: Commit) -> bool:
        """False for a commit that is to be passed over. Raises IncompatibleError if it is refused."""
        if commit.change is None or self._changes == "added":
            return True
        if self._changes == "skip":
            return False
        name = self._log.name_of(commit.number)
        raise IncompatibleError(
            f"{self._log.title}: {self._log.noun} {name} removes or changes rows ({commit.change}), and a stream of "
            "rows cannot take any back. Set `systems.<name>.changes` to `skip`, which passes over such commits as a "
            "whole, or to `added`, which reads the rows of the files that they add; or continue behind it, with the "
            f"startpoint `snapshot:{name}`, which begins with all rows that the table had then"
        )

    def _behind(self, number: int, part: int, files: Files, row: int) -> FileRows | None:
        own, starts = self._part(number, part, files)
        place = bisect_right(starts, row) - 1
        if place >= len(own):
            return None
        return FileRows(own[place], *(offset_of(number, part, each) for each in starts[place : place + 2]))

    def _part(self, number: int, part: int, files: Files) -> tuple[list[DataFile], list[int]]:
        """The files of the partition that have rows, and the number of the first row of each; then of the end."""
        known = self._parts.get((number, part))
        if known is None:
            counted = [(file, self._rows(file)) for file in files() if self._is_own(file)]
            own = [(file, rows) for file, rows in counted if rows]
            known = [file for file, _ in own], list(accumulate((rows for _, rows in own), initial=0))
            self._parts[number, part] = known
            if len(self._parts) > _KEPT_PARTS:
                del self._parts[next(iter(self._parts))]
        return known

    def _rows(self, file: DataFile) -> int:
        return self._log.count(file) if file.rows is None else file.rows

    def _is_own(self, file: DataFile) -> bool:
        return zlib.crc32(file.path.encode()) % self._partitions == self._partition
