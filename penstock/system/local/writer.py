"""Appends to local streams."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping

from penstock.api.messages.headers import headers_of, pack_headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.clock import SYSTEM_CLOCK
from penstock.errors import ConfigError
from penstock.system.base import (
    Appended,
    MarkedAtCommit,
    Progress,
    RawRecord,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.contract.writer import Marks, Parts
from penstock.system.local.files import LocalFiles
from penstock.system.local.headers import keep_headers
from penstock.system.local.partition import partition_ends, raise_fence
from penstock.system.local.progress import keep_progress, read_progress
from penstock.system.local.retention import Piece, live_bytes, mark_time, read_retention, trim
from penstock.system.local.sqlite import ConnectionPool, in_parallel, transaction

_OPEN_FILES = 64


class LocalWriter(SystemWriter):
    """Appends to local streams. Used by one thread; made by `LocalSystem.writer`."""

    def __init__(
        self, files: LocalFiles, identity: WriterIdentity | None, clock: Callable[[], int] = SYSTEM_CLOCK.now_ms
    ) -> None:
        """`clock` gives wall time in epoch milliseconds."""
        self._files = files
        self._identity = identity
        self._clock = clock
        self._pools: dict[str, ConnectionPool] = {}
        """A pool for each file, so that several can be appended to at once."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
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

    def begin(self) -> WriterTransaction:
        """Its commit is one transaction of SQLite for each partition."""
        return MarkedAtCommit(self._identity, self._append_to_all)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """The last marks of this writer's name. It fences older epochs in each of the partitions.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            ConfigError: the writer has no name.
            NotFoundError: there is no such stream or partition.
        """
        writer = check_may_mark(self._identity)
        found = {}
        for ssp in ssps:
            path = self._files.partition_path(ssp)
            with self._pool_of(ssp).use(path) as connection, transaction(connection):
                raise_fence(connection, ssp, writer)
                if (mark := read_progress(connection, path, writer.name)) is not None:
                    found[ssp] = mark
            self._close_oldest()
        return found

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _append_to_all(self, records: Parts, marks: Marks) -> Appended:
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
        records: Iterable[RawRecord],
        mark: Progress | None = None,
    ) -> tuple[int, int]:
        """The offset of the first record, and the one behind the last."""
        path = self._files.partition_path(ssp)
        with pool.use(path) as connection, transaction(connection):
            if self._identity is not None:
                raise_fence(connection, ssp, self._identity)
                if mark is not None:
                    keep_progress(connection, path, ssp, self._identity.name, mark)
            first = partition_ends(connection, path).upcoming
            retention = read_retention(connection, path)
            before = live_bytes(connection) if retention.is_limited else 0
            inserted = _insert(connection, first, records)
            if inserted:
                now = self._clock()
                mark_time(connection, path, first, now)
                if retention.is_limited:
                    piece = Piece.after_append(inserted, live_bytes(connection) - before)
                    trim(connection, path, retention, first, now, piece)
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


def _insert(connection: sqlite3.Connection, first: int, records: Iterable[RawRecord]) -> int:
    """Returns the number of records."""
    packed: list[tuple[int, bytes]] = []

    def without_headers(offset: int, record: RawRecord) -> tuple[int, int, bytes | None, bytes | None]:
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
        keep_headers(connection, packed)
    connection.execute("UPDATE head SET upcoming = ?", (first + inserted,))
    connection.execute(
        "INSERT INTO peak SELECT latest, :first"
        " FROM (SELECT MAX(timestamp) AS latest FROM message WHERE offset >= :first)"
        " WHERE latest > COALESCE((SELECT MAX(timestamp) FROM peak), latest - 1)",
        {"first": first},
    )
    return inserted
