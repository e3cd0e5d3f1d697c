"""The local system by its configuration, with its readers and writers."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from penstock.api.messages import headers_of, pack_headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.system import base
from penstock.system.contract.writer import Marks, Parts
from penstock.system.local import partition
from penstock.system.local.admin import LocalAdmin
from penstock.system.local.files import LocalFiles
from penstock.system.local.sqlite import ConnectionPool, in_parallel, transaction
from penstock.system.ranges import check_call, check_inside, missing, take_chunk

_READ = "SELECT offset, timestamp, key, value FROM message WHERE offset >= ? AND offset < ? ORDER BY offset"
_READ_WHAT_IS_LEFT = f"{_READ} LIMIT ?"


class LocalReader(base.SystemReader):
    """Reads offset ranges of local streams. Used by one thread at a time; made by `LocalSystem.reader`."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        self._pool = ConnectionPool(files.busy_timeout_ms, self._open)

    def read(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int = base.CHUNK_BYTES
    ) -> Iterator[list[base.RawMessage]]:
        """Every message of the range, in order. Nothing is yielded if a part is missing from the start.

        No transaction is open between two chunks, so a slow consumer never keeps the log from being checkpointed.

        Raises:
            NotFoundError: a message of the range is missing; names the expected and the found offset.
            ConfigError: the range ends before it starts, or a bound is not positive.
        """
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks(offsets, chunk_messages, chunk_bytes)

    def read_compacted(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int = base.CHUNK_BYTES
    ) -> Iterator[list[base.RawMessage]]:
        """No transaction is open between two chunks."""
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks_left(offsets, chunk_messages, chunk_bytes)

    def close(self) -> None:
        self._pool.close()

    def _open(self, path: str) -> sqlite3.Connection:
        """With a small cache: many readers are kept open, and each reads a page once. By default SQLite would keep 2 MB
        of pages for each."""
        connection = self._files.open(path)
        connection.execute("PRAGMA cache_size=-128")
        return connection

    def _chunks_left(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int
    ) -> Iterator[list[base.RawMessage]]:
        path = self._files.partition_path(offsets.ssp)
        with self._pool.use(path) as connection:
            done = partition.read_compacted_state(connection)
            done.check_read(offsets, partition.partition_ends(connection, path).upcoming)
        start = offsets.start
        while start < offsets.end:
            with self._pool.use(path) as connection:
                arguments = (start, offsets.end, chunk_messages)
                chunk = partition.add_headers(
                    connection, path, _take(connection, _READ_WHAT_IS_LEFT, arguments, chunk_bytes)
                )
                # A delete that went after its older record was read would bring that record back.
                if partition.read_compacted_state(connection) != done:
                    raise RetryableError(f"`{offsets.ssp}` was compacted while it was read; read it again")
            if not chunk:
                return
            start = chunk[-1][0] + 1
            yield chunk

    def _chunks(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int
    ) -> Iterator[list[base.RawMessage]]:
        path = self._files.partition_path(offsets.ssp)
        if offsets.start < offsets.end:
            with self._pool.use(path) as connection:
                ends = partition.partition_ends(connection, path)
            check_inside(offsets, ends)
        start = offsets.start
        while start < offsets.end:
            with self._pool.use(path) as connection:
                chunk = _take(connection, _READ, (start, min(start + chunk_messages, offsets.end)), chunk_bytes)
                # Offsets are unique and sorted: as many as up to the last one means every one of them.
                if not chunk or chunk[-1][0] != start + len(chunk) - 1:
                    raise _gone(offsets, start, chunk, partition.partition_ends(connection, path))
                chunk = partition.add_headers(connection, path, chunk)
            start += len(chunk)
            yield chunk


def _take(
    connection: sqlite3.Connection, query: str, arguments: Sequence[int], chunk_bytes: int
) -> list[base.RawMessage]:
    with closing(connection.execute(query, arguments)) as cursor:
        return take_chunk(cursor, chunk_bytes)


def _gone(
    offsets: base.OffsetRange, start: int, chunk: list[base.RawMessage], ends: base.PartitionOffsets
) -> NotFoundError:
    for expected, message in enumerate(chunk, start):
        if message[0] != expected:
            return missing(offsets, expected, f"found {message[0]}; there are [{ends.oldest}, {ends.upcoming})")
    expected = start + len(chunk)
    return missing(offsets, expected, f"found none; there are [{ends.oldest}, {ends.upcoming})")


_OPEN_FILES = 64


class LocalWriter(base.SystemWriter):
    """Appends to local streams. Used by one thread; made by `LocalSystem.writer`."""

    def __init__(
        self, files: LocalFiles, identity: base.WriterIdentity | None, clock: Callable[[], int] = SYSTEM_CLOCK.now_ms
    ) -> None:
        """`clock` gives wall time in epoch milliseconds."""
        self._files = files
        self._identity = identity
        self._clock = clock
        self._pools: dict[str, ConnectionPool] = {}
        """A pool for each file, so that several can be appended to at once."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> int:
        """Append all records or none; when it returns they are synced to disk. Returns the first one's offset.

        Messages that the stream's retention no longer keeps are deleted in the same transaction, or, if they are many,
        in those of the next appends. With no records it only checks the fence and returns the upcoming offset.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            NotFoundError: there is no such stream or partition.
            ConfigError: a record has values of other types.
            PenstockTimeoutError: another process kept the partition locked.
            RetryableError: the disk is full or failed; nothing was appended.
            CorruptError: the partition's file is damaged.
        """
        first, _ = self._append(self._pool_of(ssp), ssp, records)
        self._close_oldest()
        return first

    def begin(self) -> base.WriterTransaction:
        """Its commit is one transaction of SQLite for each partition."""
        return base.MarkedAtCommit(self._identity, self._append_to_all)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, base.Progress]:
        """The last marks of this writer's name. It fences older epochs in each of the partitions.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            ConfigError: the writer has no name.
            NotFoundError: there is no such stream or partition.
        """
        writer = base.check_may_mark(self._identity)
        found = {}
        for ssp in ssps:
            path = self._files.partition_path(ssp)
            with self._pool_of(ssp).use(path) as connection, transaction(connection):
                partition.raise_fence(connection, ssp, writer)
                if (mark := partition.read_progress(connection, path, writer.name)) is not None:
                    found[ssp] = mark
            self._close_oldest()
        return found

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _append_to_all(self, records: Parts, marks: Marks) -> base.Appended:
        """Works in parallel, because a disk syncs many files in the time of one."""
        pools = {ssp: self._pool_of(ssp) for ssp in records}
        appended: dict[SystemStreamPartition, tuple[tuple[int, int], ...]] = {}

        def append(ssp: SystemStreamPartition) -> None:
            first, end = self._append(pools[ssp], ssp, records[ssp], marks.get(ssp))
            if end > first:
                appended[ssp] = ((first, end),)

        in_parallel(append, sorted(records))
        self._close_oldest()
        return appended

    def _append(
        self,
        pool: ConnectionPool,
        ssp: SystemStreamPartition,
        records: Iterable[base.RawRecord],
        mark: base.Progress | None = None,
    ) -> tuple[int, int]:
        """The offset of the first record, and the one behind the last."""
        path = self._files.partition_path(ssp)
        with pool.use(path) as connection, transaction(connection):
            if self._identity is not None:
                partition.raise_fence(connection, ssp, self._identity)
                if mark is not None:
                    partition.keep_progress(connection, path, ssp, self._identity.name, mark)
            first = partition.partition_ends(connection, path).upcoming
            retention = partition.read_retention(connection, path)
            before = partition.live_bytes(connection) if retention.is_limited else 0
            inserted = _insert(connection, first, records)
            if inserted:
                now = self._clock()
                partition.mark_time(connection, path, first, now)
                if retention.is_limited:
                    piece = partition.Piece.after_append(inserted, partition.live_bytes(connection) - before)
                    partition.trim(connection, path, retention, first, now, piece)
        return first, first + inserted

    def _pool_of(self, ssp: SystemStreamPartition) -> ConnectionPool:
        path = self._files.partition_path(ssp)
        pool = self._pools.pop(path, None) or ConnectionPool(self._files.busy_timeout_ms, self._files.open)
        self._pools[path] = pool  # at the end: the one that was used last
        return pool

    def _close_oldest(self) -> None:
        """Keep a long-lived writer from holding every file of a large stream open."""
        while len(self._pools) > _OPEN_FILES:
            self._pools.pop(next(iter(self._pools))).close()


def _insert(connection: sqlite3.Connection, first: int, records: Iterable[base.RawRecord]) -> int:
    """Returns the number of records."""
    packed: list[tuple[int, bytes]] = []

    def without_headers(offset: int, record: base.RawRecord) -> tuple[int, int, bytes | None, bytes | None]:
        if len(record) == 4:
            packed.append((offset, pack_headers(headers_of(record[3]))))
            return offset, *record[:3]
        timestamp, key, value = record
        return offset, timestamp, key, value

    rows = (without_headers(offset, record) for offset, record in enumerate(records, first))
    try:
        inserted = connection.executemany("INSERT INTO message VALUES (?, ?, ?, ?)", rows).rowcount
    except (TypeError, ValueError, sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
        raise ConfigError(
            f"a record is not (timestamp in epoch milliseconds: int, key: bytes or None, value: bytes or None) and "
            f"perhaps headers: {error}; nothing was appended"
        ) from error
    if inserted < 1:
        return 0
    if packed:
        partition.keep_headers(connection, packed)
    connection.execute("UPDATE head SET upcoming = ?", (first + inserted,))
    connection.execute(
        "INSERT INTO peak SELECT latest, :first"
        " FROM (SELECT MAX(timestamp) AS latest FROM message WHERE offset >= :first)"
        " WHERE latest > COALESCE((SELECT MAX(timestamp) FROM peak), latest - 1)",
        {"first": first},
    )
    return inserted


@dataclass(frozen=True, slots=True)
class LocalSystem(base.System):
    """Streams in a folder of this host (or of a file system with working POSIX locks; NFS is not one).

    `root` is made absolute, so that every process means the same folder; `~` is expanded. `busy_timeout_ms` is the time
    that a step waits for another process that appends to the same partition.

    Raises:
        ConfigError: the name is empty or has a dot, the root is empty, or the timeout is negative.
    """

    name: str
    root: str
    busy_timeout_ms: int = 30_000

    dense_offsets: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    compacts_on_request: ClassVar[bool] = True
    keeps_owners: ClassVar[bool] = True
    readers_seek: ClassVar[bool] = True
    carries_headers: ClassVar[bool] = True
    retains: ClassVar[bool] = True
    ends_streams: ClassVar[bool] = True
    reports_appended: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ConfigError(f"`{self.name}` cannot be a system's name: it must not be empty or have a dot")
        if not self.root:
            raise ConfigError(f"the local system `{self.name}` needs a root folder")
        if self.busy_timeout_ms < 0:
            raise ConfigError(f"the local system `{self.name}`: busy_timeout_ms is {self.busy_timeout_ms}")
        object.__setattr__(self, "root", os.path.abspath(os.path.expanduser(self.root)))

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LocalSystem:
        base.check_options(name, options, ["path"])
        return cls(name, options.get("path", ""))

    def admin(self) -> LocalAdmin:
        """The admin keeps the partitions open that it has looked at."""
        return LocalAdmin(self._files())

    def reader(self) -> LocalReader:
        return LocalReader(self._files())

    def writer(self, identity: base.WriterIdentity | None) -> LocalWriter:
        return LocalWriter(self._files(), identity)

    def _files(self) -> LocalFiles:
        return LocalFiles(self.name, self.root, self.busy_timeout_ms)
