"""Looks at and makes local streams."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import owned_stream
from penstock.errors import ConfigError, IncompatibleError, RetryableError
from penstock.system.base import OffsetRange, PartitionOffsets, Progress, SystemAdmin, WriterIdentity
from penstock.system.local import partition
from penstock.system.local.files import FileVersion, LocalFiles, StreamInfo
from penstock.system.local.sqlite import ConnectionPool, data_version, in_parallel, stored_integer, transaction

logger = logging.getLogger(__name__)
_CREATE_OWNER = "CREATE TABLE IF NOT EXISTS owner (id INTEGER PRIMARY KEY CHECK (id = 0), name TEXT NOT NULL)"
_AT_TIME = """
SELECT COALESCE(
    (SELECT offset FROM message
      WHERE offset >= (SELECT offset FROM peak WHERE timestamp >= :t ORDER BY timestamp LIMIT 1) AND timestamp >= :t
      ORDER BY offset LIMIT 1),
    (SELECT upcoming FROM head))
"""


@cache
def _warn_of_readers(folder: str, mode: str) -> None:
    logger.warning(
        "other users of this host can enter `%s` (mode %s), and hold up the writers of this stream: `chmod -R go= %s`",
        folder,
        mode,
        folder,
    )


class LocalAdmin(SystemAdmin):
    """Looks at and makes local streams. Thread-safe; made by `LocalSystem.admin`.

    Every call may raise PenstockTimeoutError (a file stayed locked), RetryableError (disk full or failing) and
    CorruptError (a damaged file), naming the file.
    """

    def __init__(self, files: LocalFiles, clock: Callable[[], int] = SYSTEM_CLOCK.now_ms) -> None:
        """`clock` gives wall time in epoch milliseconds."""
        self._files = files
        self._clock = clock
        self._pool = ConnectionPool(files.busy_timeout_ms, files.open)
        # An idle job looks at its inputs many times a second: what has not changed is not read again.
        self._described: dict[str, tuple[FileVersion | None, StreamInfo]] = {}
        self._known: dict[str, tuple[sqlite3.Connection, int, PartitionOffsets]] = {}
        """By path: the ends of a partition at a version that the connection saw."""

    def partition_count(self, stream: str) -> int:
        """Raises NotFoundError with the command that creates the stream."""
        version, known = self._files.version(stream), self._described.get(stream)
        if version is None or known is None or known[0] != version:
            known = self._described[stream] = version, self._files.describe(stream)
            if (mode := self._files.open_to_readers(stream)) is not None:
                _warn_of_readers(os.path.join(self._files.root, stream), mode)
        return known[1].partitions

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        ssps = self._partitions(stream)
        return {ssp.partition: self._ends(ssp) for ssp in ssps}

    def stream_identity(self, stream: str) -> str | None:
        return self._files.describe(stream).uid

    def complete_from(self, stream: str) -> dict[int, int]:
        """The end of the last compaction or deletion by retention, read atomically in each partition."""

        def look(ssp: SystemStreamPartition) -> int:
            path = self._files.partition_path(ssp)
            with self._pool.use(path) as connection:
                return max(
                    partition.read_compacted_state(connection).end, partition.partition_ends(connection, path).oldest
                )

        return {ssp.partition: look(ssp) for ssp in self._partitions(stream)}

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Creates the system's folder, too, if need be; see `LocalFiles.create`."""
        made = self._files.create(stream, partitions, retention or StreamRetention())
        if retention is not None and (found := self.retention(stream)) != retention:
            name = f"{self._files.system}.{stream}"
            raise IncompatibleError(
                f"the stream `{name}` exists and keeps its messages: {found}; asked for: {retention}. Change it with "
                f"`penstock stream retain {name}`, or ask for what it has"
            )
        return made

    def streams(self) -> list[str]:
        return self._files.streams()

    def delete_stream(self, stream: str) -> None:
        self._files.delete(stream)

    def retention(self, stream: str) -> StreamRetention:
        path = self._files.partition_path(SystemStreamPartition(self._files.system, stream, 0))
        with self._pool.use(path) as connection:
            return partition.read_retention(connection, path)

    def set_retention(self, stream: str, retention: StreamRetention) -> int:
        """Partition 0 gets limits first and loses them last, in transactions that also see the stream's owner: a stream
        with an owner has no limit in any partition. Appends wait for one piece of the deletion, not for all of it."""
        first, *others = self._partitions(stream)
        path = self._files.partition_path(first)

        def put(ssp: SystemStreamPartition) -> None:
            with self._open_alone(ssp) as connection, transaction(connection):
                partition.write_retention(connection, retention)

        with self._open_alone(first) as connection:
            if retention.is_limited:
                with transaction(connection):
                    partition.check_has_no_owner(connection, first)
                    partition.write_retention(connection, retention)
            with transaction(connection):
                if retention.is_limited and partition.read_retention(connection, path) != retention:
                    raise RetryableError(f"the retention of `{first.system_stream}` was changed meanwhile; try again")
                in_parallel(put, others)
                partition.write_retention(connection, retention)
        return sum(self._trim(ssp) for ssp in (first, *others)) if retention.is_limited else 0

    def end_stream(self, stream: str) -> None:
        """Puts a row in each partition's file, which the next append makes void."""
        if (owner := self.owner(stream)) is not None:
            raise ConfigError(
                f"the stream `{self._files.system}.{stream}` is {owned_stream(owner)}, which ends with its owner: "
                f"{owner}"
            )

        def end_one(ssp: SystemStreamPartition) -> None:
            with self._open_alone(ssp) as connection, transaction(connection):
                partition.put_end(connection, self._files.partition_path(ssp))

        in_parallel(end_one, self._partitions(stream))

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        found = {}
        for ssp in ssps:
            path = self._files.partition_path(ssp)
            with self._pool.use(path) as connection:
                if (mark := partition.read_progress(connection, path, name)) is not None:
                    found[ssp] = mark
        return found

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """Timestamps may be in any order. It costs a look-up and a scan inside one append: the first message that late
        is in the first append that raised the largest timestamp that far."""
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
                partition.raise_fence(connection, ssp, writer)

        in_parallel(fence_one, self._partitions(stream))

    def own(self, stream: str, owner: str) -> str:
        """The owner is a row in the file of partition 0."""
        ssp = SystemStreamPartition(self._files.system, stream, 0)
        with self._open_alone(ssp) as connection, transaction(connection):
            retention = partition.read_retention(connection, self._files.partition_path(ssp))
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
        path = self._files.partition_path(SystemStreamPartition(self._files.system, stream, 0))
        with self._pool.use(path) as connection:
            return partition.owner_of(connection)

    def compact(
        self, offsets: OffsetRange, writer: WriterIdentity, *, min_dirty_ratio: float = 0.0, dry_run: bool = False
    ) -> int:
        """The file keeps its size: new records take the place of the dropped ones.

        Appends wait only while the records are deleted, not during the search for them.
        """
        path = self._files.partition_path(offsets.ssp)
        pool = ConnectionPool(self._files.busy_timeout_ms, self._files.open)  # its scan must not hold up offsets()
        try:
            with pool.use(path) as connection:
                done = partition.read_compacted_state(connection)
                done.check_compact(offsets, partition.partition_ends(connection, path).upcoming)
                if not done.is_due(offsets, min_dirty_ratio):
                    return 0
                found = partition.find_superseded(connection, offsets)
                if not dry_run:
                    with transaction(connection):
                        partition.raise_fence(connection, offsets.ssp, writer)
                        partition.drop_superseded(connection, offsets, found.kept)
                return found.superseded
        finally:
            pool.close()

    def close(self) -> None:
        self._known.clear()
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
                    upcoming, now = partition.partition_ends(connection, path).upcoming, self._clock()
                    partition.mark_time(connection, path, upcoming, now)
                    deleted = partition.trim(
                        connection, path, partition.read_retention(connection, path), upcoming, now, partition.Piece()
                    )
                total += deleted
                if not deleted:
                    return total
                time.sleep(time.monotonic() - began)  # SQLite has no queue for locks: let appends have their turn

    def _ends(self, ssp: SystemStreamPartition) -> PartitionOffsets:
        path = self._files.partition_path(ssp)
        with self._pool.use(path) as connection:
            version = data_version(connection)
            known = self._known.get(path)
            if known is not None and known[0] is connection and known[1] == version:
                return known[2]
            ends = partition.partition_ends(connection, path)
            if partition.has_ended(connection, path, ends.upcoming):
                ends = replace(ends, ended=True)
            self._known[path] = connection, version, ends
            return ends
