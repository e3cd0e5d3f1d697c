"""Reads local streams."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

from penstock.errors import NotFoundError, RetryableError
from penstock.system.base import CHUNK_BYTES, OffsetRange, PartitionOffsets, RawMessage, SystemReader
from penstock.system.local.compaction import read_compacted_state
from penstock.system.local.files import LocalFiles
from penstock.system.local.headers import add_headers
from penstock.system.local.partition import partition_ends
from penstock.system.local.sqlite import ConnectionPool
from penstock.system.ranges import check_call, check_inside, missing, take_chunk

_READ = "SELECT offset, timestamp, key, value FROM message WHERE offset >= ? AND offset < ? ORDER BY offset"
_READ_WHAT_IS_LEFT = f"{_READ} LIMIT ?"


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

    def _chunks_left(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> Iterator[list[RawMessage]]:
        path = self._files.partition_path(offsets.ssp)
        with self._pool.use(path) as connection:
            done = read_compacted_state(connection)
            done.check_read(offsets, partition_ends(connection, path).upcoming)
        start = offsets.start
        while start < offsets.end:
            with self._pool.use(path) as connection:
                arguments = (start, offsets.end, chunk_messages)
                chunk = add_headers(connection, path, _take(connection, _READ_WHAT_IS_LEFT, arguments, chunk_bytes))
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
                ends = partition_ends(connection, path)
            check_inside(offsets, ends)
        start = offsets.start
        while start < offsets.end:
            with self._pool.use(path) as connection:
                chunk = _take(connection, _READ, (start, min(start + chunk_messages, offsets.end)), chunk_bytes)
                # Offsets are unique and sorted: as many as up to the last one means every one of them.
                if not chunk or chunk[-1][0] != start + len(chunk) - 1:
                    raise _gone(offsets, start, chunk, partition_ends(connection, path))
                chunk = add_headers(connection, path, chunk)
            start += len(chunk)
            yield chunk


def _take(connection: sqlite3.Connection, query: str, arguments: Sequence[int], chunk_bytes: int) -> list[RawMessage]:
    with closing(connection.execute(query, arguments)) as cursor:
        return take_chunk(cursor, chunk_bytes)


def _gone(offsets: OffsetRange, start: int, chunk: list[RawMessage], ends: PartitionOffsets) -> NotFoundError:
    for expected, message in enumerate(chunk, start):
        if message[0] != expected:
            return missing(offsets, expected, f"found {message[0]}; there are [{ends.oldest}, {ends.upcoming})")
    expected = start + len(chunk)
    return missing(offsets, expected, f"found none; there are [{ends.oldest}, {ends.upcoming})")
