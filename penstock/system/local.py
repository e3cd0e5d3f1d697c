"""The local system: a durable, partitioned log in one SQLite file per partition, shared by several processes."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import ClassVar

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    RetryableError,
)
from penstock.system._local_compaction import drop_superseded, find_superseded, read_compacted_state
from penstock.system._local_files import LocalFiles
from penstock.system._local_retention import Piece, live_bytes, mark_time, read_retention, trim, write_retention
from penstock.system._sqlite import ConnectionPool, in_parallel, stored_integer, transaction
from penstock.system.base import (
    CHUNK_BYTES,
    AppendedAtCommit,
    OffsetRange,
    PartitionOffsets,
    RawMessage,
    RawRecord,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_options,
)
from penstock.system.ranges import check_call, check_inside, missing, take_chunk

_OPEN_FILES = 64
"""How many files a writer keeps open between appends."""
_ENDS = "SELECT (SELECT MIN(offset) FROM message), (SELECT MAX(offset) FROM message), upcoming FROM head"
_READ = "SELECT offset, timestamp, key, value FROM message WHERE offset >= ? AND offset < ? ORDER BY offset"
_READ_WHAT_IS_LEFT = f"{_READ} LIMIT ?"
_OWNER_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'owner'"
_CREATE_OWNER = "CREATE TABLE IF NOT EXISTS owner (id INTEGER PRIMARY KEY CHECK (id = 0), name TEXT NOT NULL)"
_AT_TIME = """
SELECT COALESCE(
    (SELECT offset FROM message
      WHERE offset >= (SELECT offset FROM peak WHERE timestamp >= :t ORDER BY timestamp LIMIT 1) AND timestamp >= :t
      ORDER BY offset LIMIT 1),
    (SELECT upcoming FROM head))
"""


def wall_time_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class LocalSystem(System):
    """Streams in a folder of this host (or of a file system with working POSIX locks; NFS is not one).

    `root` is made absolute, so that every process means the same folder; `~` is expanded. `busy_timeout_ms` is how
    long a step waits for another process that appends to the same partition.

    Raises:
        ConfigError: the name is empty or has a dot, the root is empty, or the timeout is negative.
    """

    name: str
    root: str
    busy_timeout_ms: int = 30_000

    dense_offsets: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    compacts_on_request: ClassVar[bool] = True
    readers_seek: ClassVar[bool] = True
    retains: ClassVar[bool] = True

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
        """The system with the streams in the folder `path`."""
        check_options(name, options, ["path"])
        return cls(name, options.get("path", ""))

    def admin(self) -> LocalAdmin:
        """An admin; it keeps the partitions it looked at open."""
        return LocalAdmin(self._files())

    def reader(self) -> LocalReader:
        """A reader."""
        return LocalReader(self._files())

    def writer(self, identity: WriterIdentity | None) -> LocalWriter:
        """A writer; without an identity it appends unfenced."""
        return LocalWriter(self._files(), identity)

    def _files(self) -> LocalFiles:
        return LocalFiles(self.name, self.root, self.busy_timeout_ms)


class LocalAdmin(SystemAdmin):
    """Looks at and makes local streams. Thread-safe; made by `LocalSystem.admin`.

    Every call may raise PenstockTimeoutError (a file stayed locked), RetryableError (disk full or failing) and
    CorruptError (a damaged file), naming the file.
    """

    def __init__(self, files: LocalFiles, clock: Callable[[], int] = wall_time_ms) -> None:
        """`clock` gives wall time in epoch milliseconds."""
        self._files = files
        self._clock = clock
        self._pool = ConnectionPool(files.busy_timeout_ms, files.open)

    def partition_count(self, stream: str) -> int:
        """The number of partitions, read again each time. Raises NotFoundError saying how to create the stream."""
        return self._files.describe(stream).partitions

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """The ends of every partition, each read atomically. Raises NotFoundError if there is no such stream."""
        ssps = self._partitions(stream)
        return {ssp.partition: self._ends(ssp) for ssp in ssps}

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Create the stream and, if need be, the system's folder; see `LocalFiles.create`."""
        made = self._files.create(stream, partitions, retention or StreamRetention())
        if retention is not None and (found := self.retention(stream)) != retention:
            name = f"{self._files.system}.{stream}"
            raise IncompatibleError(
                f"the stream `{name}` exists and keeps its messages: {found}; asked for: {retention}. Change it with "
                f"`penstock stream retain {name}`, or ask for what it has"
            )
        return made

    def streams(self) -> list[str]:
        """Every stream that was published whole."""
        return self._files.streams()

    def delete_stream(self, stream: str) -> None:
        """See `LocalFiles.delete`. Whoever appends or reads next finds no stream."""
        self._files.delete(stream)

    def retention(self, stream: str) -> StreamRetention:
        """When the stream deletes its oldest messages."""
        path = self._files.partition_path(SystemStreamPartition(self._files.system, stream, 0))
        with self._pool.use(path) as connection:
            return read_retention(connection, path)

    def set_retention(self, stream: str, retention: StreamRetention) -> int:
        """See `SystemAdmin.set_retention`.

        Partition 0 gets limits first and loses them last, in transactions that also see the stream's owner: what has
        an owner has no limit in any partition. Appends wait for a piece of what is deleted, not for all of it.
        """
        first, *others = self._partitions(stream)
        path = self._files.partition_path(first)

        def put(ssp: SystemStreamPartition) -> None:
            with self._open_alone(ssp) as connection, transaction(connection):
                write_retention(connection, retention)

        with self._open_alone(first) as connection:
            if retention.is_limited:
                with transaction(connection):
                    _check_has_no_owner(connection, first)
                    write_retention(connection, retention)
            with transaction(connection):
                if retention.is_limited and read_retention(connection, path) != retention:
                    raise RetryableError(f"the retention of `{first.system_stream}` was changed meanwhile; try again")
                in_parallel(put, others)
                write_retention(connection, retention)
        return sum(self._trim(ssp) for ssp in (first, *others)) if retention.is_limited else 0

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The smallest offset with a timestamp at or after `timestamp_ms`, in whatever order timestamps are.

        It costs a look-up and a scan inside one append: the first message that late is in the first append that
        raised the largest timestamp that far.
        """
        with self._pool.use(self._files.partition_path(ssp)) as connection:
            found = connection.execute(_AT_TIME, {"t": timestamp_ms}).fetchone()
        return stored_integer(found[0], self._files.partition_path(ssp), "an offset")

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        """Refuse older epochs of the writer's name in every partition, one transaction each.

        If it raises half-way, some partitions are fenced; calling it again, or a larger epoch, completes it.

        Raises:
            FencedError: a larger epoch of this name was seen.
        """

        def fence_one(ssp: SystemStreamPartition) -> None:
            with self._open_alone(ssp) as connection, transaction(connection):
                _raise_fence(connection, ssp, writer)

        in_parallel(fence_one, self._partitions(stream))

    def own(self, stream: str, owner: str) -> str:
        """See `SystemAdmin.own`: a row in the file of partition 0."""
        ssp = SystemStreamPartition(self._files.system, stream, 0)
        with self._open_alone(ssp) as connection, transaction(connection):
            retention = read_retention(connection, self._files.partition_path(ssp))
            if retention.is_limited:
                raise ConfigError(
                    f"the stream `{ssp.system_stream}` deletes old messages (retention: {retention}), but its owner, "
                    f"{owner}, needs all of them: use another stream, or run `penstock stream retain "
                    f"{ssp.system_stream} --retention none --retention-bytes none`"
                )
            connection.execute(_CREATE_OWNER)
            connection.execute("INSERT OR IGNORE INTO owner VALUES (0, ?)", (owner,))
            return str(connection.execute("SELECT name FROM owner").fetchone()[0])

    def owner(self, stream: str) -> str | None:
        """The owner on record."""
        path = self._files.partition_path(SystemStreamPartition(self._files.system, stream, 0))
        with self._pool.use(path) as connection:
            return _owner(connection)

    def compact(
        self, offsets: OffsetRange, writer: WriterIdentity, *, min_dirty_ratio: float = 0.0, dry_run: bool = False
    ) -> int:
        """See `SystemAdmin.compact`. The file keeps its size: new records take the place of those that went.

        Appends wait only while the records are deleted, not while they are looked for.
        """
        path = self._files.partition_path(offsets.ssp)
        pool = ConnectionPool(self._files.busy_timeout_ms, self._files.open)  # its scan must not hold up offsets()
        try:
            with pool.use(path) as connection:
                done = read_compacted_state(connection)
                done.check_compact(offsets, _ends(connection, path).upcoming)
                if not done.is_due(offsets, min_dirty_ratio):
                    return 0
                found = find_superseded(connection, offsets)
                if not dry_run:
                    with transaction(connection):
                        _raise_fence(connection, offsets.ssp, writer)
                        drop_superseded(connection, offsets, found.kept)
                return found.superseded
        finally:
            pool.close()

    def close(self) -> None:
        """Close the files."""
        self._pool.close()

    def _partitions(self, stream: str) -> list[SystemStreamPartition]:
        return [SystemStreamPartition(self._files.system, stream, i) for i in range(self.partition_count(stream))]

    @contextmanager
    def _open_alone(self, ssp: SystemStreamPartition) -> Iterator[sqlite3.Connection]:
        """A separate connection, whose waits do not hold up `offsets`."""
        pool = ConnectionPool(self._files.busy_timeout_ms, self._files.open)
        try:
            with pool.use(self._files.partition_path(ssp)) as connection:
                yield connection
        finally:
            pool.close()

    def _trim(self, ssp: SystemStreamPartition) -> int:
        path, total = self._files.partition_path(ssp), 0
        with self._open_alone(ssp) as connection:
            while True:
                began = time.monotonic()
                with transaction(connection):
                    upcoming, now = _ends(connection, path).upcoming, self._clock()
                    mark_time(connection, path, upcoming, now)
                    deleted = trim(connection, path, read_retention(connection, path), upcoming, now, Piece())
                total += deleted
                if not deleted:
                    return total
                time.sleep(time.monotonic() - began)  # SQLite has no queue for locks: let appends have their turn

    def _ends(self, ssp: SystemStreamPartition) -> PartitionOffsets:
        path = self._files.partition_path(ssp)
        with self._pool.use(path) as connection:
            return _ends(connection, path)


class LocalReader(SystemReader):
    """Reads offset ranges of local streams. Used by one thread at a time; made by `LocalSystem.reader`."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        self._pool = ConnectionPool(files.busy_timeout_ms, self._open)

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """Every message of the range, in order. Nothing is yielded if a part is missing from the start.

        No transaction is open between two chunks, so a slow consumer never keeps the log from being checkpointed.

        Raises:
            NotFoundError: a message of the range is missing; names the expected and the found offset.
            ConfigError: the range ends before it starts, or a bound is not positive.
        """
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks(offsets, chunk_messages, chunk_bytes)

    def read_compacted(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """What is left of the range; see `SystemReader.read_compacted`. No transaction is open between two chunks."""
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks_left(offsets, chunk_messages, chunk_bytes)

    def close(self) -> None:
        """Close the files."""
        self._pool.close()

    def _open(self, path: str) -> sqlite3.Connection:
        """Many readers are kept open, and each reads a page once: SQLite would keep 2 MB of pages for each."""
        connection = self._files.open(path)
        connection.execute("PRAGMA cache_size=-128")
        return connection

    def _chunks_left(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> Iterator[list[RawMessage]]:
        path = self._files.partition_path(offsets.ssp)
        with self._pool.use(path) as connection:
            done = read_compacted_state(connection)
            done.check_read(offsets, _ends(connection, path).upcoming)
        start = offsets.start
        while start < offsets.end:
            with self._pool.use(path) as connection:
                arguments = (start, offsets.end, chunk_messages)
                chunk = _take(connection, _READ_WHAT_IS_LEFT, arguments, chunk_bytes)
                # A delete that went after its older record was read would bring that record back.
                if read_compacted_state(connection) != done:
                    raise RetryableError(f"`{offsets.ssp}` was compacted while it was read; read it again")
            if not chunk:
                return
            start = chunk[-1][0] + 1
            yield chunk

    def _chunks(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> Iterator[list[RawMessage]]:
        path = self._files.partition_path(offsets.ssp)
        if offsets.start < offsets.end:
            with self._pool.use(path) as connection:
                ends = _ends(connection, path)
            check_inside(offsets, ends)
        start = offsets.start
        while start < offsets.end:
            with self._pool.use(path) as connection:
                chunk = _take(connection, _READ, (start, min(start + chunk_messages, offsets.end)), chunk_bytes)
                # Offsets are unique and sorted: as many as up to the last one means every one of them.
                if not chunk or chunk[-1][0] != start + len(chunk) - 1:
                    raise _gone(offsets, start, chunk, _ends(connection, path))
            start += len(chunk)
            yield chunk


class LocalWriter(SystemWriter):
    """Appends to local streams. Used by one thread; made by `LocalSystem.writer`."""

    def __init__(
        self, files: LocalFiles, identity: WriterIdentity | None, clock: Callable[[], int] = wall_time_ms
    ) -> None:
        """`clock` gives wall time in epoch milliseconds."""
        self._files = files
        self._identity = identity
        self._clock = clock
        self._pools: dict[str, ConnectionPool] = {}
        """A pool for each file, so that several can be appended to at once."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Append all records or none; when it returns they are synced to disk. Returns the first one's offset.

        What the stream's retention no longer keeps goes in the same transaction, or in those of the next appends if it
        is much. With no records it only checks the fence and returns the upcoming offset.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            NotFoundError: there is no such stream or partition.
            ConfigError: a record has values of other types.
            PenstockTimeoutError: another process kept the partition locked.
            RetryableError: the disk is full or failed; nothing was appended.
            CorruptError: the partition's file is damaged.
        """
        first = self._append(self._pool_of(ssp), ssp, records)
        self._close_oldest()
        return first

    def begin(self) -> WriterTransaction:
        """Begin to append to several partitions. Its commit is one transaction of SQLite for each of them."""
        return AppendedAtCommit(self._append_to_all)

    def close(self) -> None:
        """Close the files."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _append_to_all(self, records: Mapping[SystemStreamPartition, Iterable[RawRecord]]) -> None:
        """In parallel, because a disk syncs many files in the time of one."""
        pools = {ssp: self._pool_of(ssp) for ssp in records}
        in_parallel(lambda ssp: self._append(pools[ssp], ssp, records[ssp]), sorted(records))
        self._close_oldest()

    def _append(self, pool: ConnectionPool, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        path = self._files.partition_path(ssp)
        with pool.use(path) as connection, transaction(connection):
            if self._identity is not None:
                _raise_fence(connection, ssp, self._identity)
            first = _ends(connection, path).upcoming
            retention = read_retention(connection, path)
            before = live_bytes(connection) if retention.is_limited else 0
            inserted = _insert(connection, first, records)
            if inserted:
                now = self._clock()
                mark_time(connection, path, first, now)
                if retention.is_limited:
                    piece = Piece.after_append(inserted, live_bytes(connection) - before)
                    trim(connection, path, retention, first, now, piece)
        return first

    def _pool_of(self, ssp: SystemStreamPartition) -> ConnectionPool:
        path = self._files.partition_path(ssp)
        pool = self._pools.pop(path, None) or ConnectionPool(self._files.busy_timeout_ms, self._files.open)
        self._pools[path] = pool  # at the end: the one that was used last
        return pool

    def _close_oldest(self) -> None:
        """A writer that is kept for long must not keep every file of a large stream open."""
        while len(self._pools) > _OPEN_FILES:
            self._pools.pop(next(iter(self._pools))).close()


def _take(connection: sqlite3.Connection, query: str, arguments: Sequence[int], chunk_bytes: int) -> list[RawMessage]:
    with closing(connection.execute(query, arguments)) as cursor:
        return take_chunk(cursor, chunk_bytes)


def _raise_fence(connection: sqlite3.Connection, ssp: SystemStreamPartition, writer: WriterIdentity) -> None:
    seen = connection.execute("SELECT epoch FROM fence WHERE writer = ?", (writer.name,)).fetchone()
    epoch = -1 if seen is None else stored_integer(seen[0], str(ssp), f"the epoch of its writer `{writer.name}`")
    if epoch > writer.epoch:
        raise FencedError(
            f"the writer `{writer.name}` of epoch {writer.epoch} may not append to `{ssp.system_stream}` partition "
            f"{ssp.partition}: epoch {epoch} has taken over. Stop this run"
        )
    if epoch < writer.epoch:
        connection.execute("REPLACE INTO fence VALUES (?, ?)", (writer.name, writer.epoch))


def _owner(connection: sqlite3.Connection) -> str | None:
    if connection.execute(_OWNER_EXISTS).fetchone() is None:
        return None
    found = connection.execute("SELECT name FROM owner").fetchone()
    return None if found is None else str(found[0])


def _check_has_no_owner(connection: sqlite3.Connection, ssp: SystemStreamPartition) -> None:
    if (owner := _owner(connection)) is not None:
        raise ConfigError(
            f"the stream `{ssp.system_stream}` is a changelog: its owner, {owner}, needs all its messages. It cannot "
            "have a retention"
        )


def _insert(connection: sqlite3.Connection, first: int, records: Iterable[RawRecord]) -> int:
    """How many records were inserted."""
    rows = ((offset, timestamp, key, value) for offset, (timestamp, key, value) in enumerate(records, first))
    try:
        inserted = connection.executemany("INSERT INTO message VALUES (?, ?, ?, ?)", rows).rowcount
    except (TypeError, ValueError, sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
        raise ConfigError(
            f"a record is not (timestamp in epoch milliseconds: int, key: bytes or None, value: bytes or None): "
            f"{error}; nothing was appended"
        ) from error
    if inserted < 1:
        return 0
    connection.execute("UPDATE head SET upcoming = ?", (first + inserted,))
    connection.execute(
        "INSERT INTO peak SELECT latest, :first"
        " FROM (SELECT MAX(timestamp) AS latest FROM message WHERE offset >= :first)"
        " WHERE latest > COALESCE((SELECT MAX(timestamp) FROM peak), latest - 1)",
        {"first": first},
    )
    return inserted


def _ends(connection: sqlite3.Connection, path: str) -> PartitionOffsets:
    oldest, newest, upcoming = connection.execute(_ENDS).fetchone()
    upcoming = stored_integer(upcoming, path, "its next offset")
    if newest is not None and newest >= upcoming:
        raise CorruptError(f"`{path}` holds the offset {newest} but says that {upcoming} comes next")
    return PartitionOffsets(upcoming if oldest is None else oldest, upcoming)


def _gone(offsets: OffsetRange, start: int, chunk: list[RawMessage], ends: PartitionOffsets) -> NotFoundError:
    for expected, message in enumerate(chunk, start):
        if message[0] != expected:
            return missing(offsets, expected, f"found {message[0]}; there are [{ends.oldest}, {ends.upcoming})")
    expected = start + len(chunk)
    return missing(offsets, expected, f"found none; there are [{ends.oldest}, {ends.upcoming})")
