"""A partition of the local system: what admin, readers and writers share of it, its retention, and its compaction.

`progress` has how far writers have published to it, a row by writer name. The first mark makes this table. `header` has
a row for each message that has headers. The first of them makes the table, and a trigger, by which the headers go with
their message.

`retention` has one row while the partition has a limit. The row of partition 0 is the stream's setting; the others
have it too, so that an append finds it in its own transaction. No other partition has a limit while partition 0 has
none.

`mark` has the times of appends: messages from `offset` to the next mark were appended not later than `until` (wall
time in epoch milliseconds). An append makes a mark when the last one's time is over. A mark is for a minute, or for
a thousandth of the time since the oldest mark, so that there are some thousands at most. Their times never go back,
even if the clock does.

The state of compaction is in a separate table, `compacted`, which the first compaction or the first deletion by
retention makes. Its one row has the start of the partition, the end of its compacted part, and the number of records
left there. A deletion by retention is recorded like a compaction of the empty range where the partition then begins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.api.messages import unpack_headers
from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import owned_stream
from penstock.errors import ConfigError, CorruptError, FencedError
from penstock.system.base import OffsetRange, PartitionOffsets, Progress, RawMessage, WriterIdentity
from penstock.system.local.sqlite import stored_integer
from penstock.system.ranges import Compacted

_ENDS = "SELECT (SELECT MIN(offset) FROM message), (SELECT MAX(offset) FROM message), upcoming FROM head"
_ENDED_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'ended'"
_CREATE_ENDED = "CREATE TABLE IF NOT EXISTS ended (id INTEGER PRIMARY KEY CHECK (id = 0), upcoming INTEGER NOT NULL)"
_OWNER_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'owner'"


def partition_ends(connection: sqlite3.Connection, path: str) -> PartitionOffsets:
    """Raises CorruptError if the ends contradict each other."""
    oldest, newest, upcoming = connection.execute(_ENDS).fetchone()
    upcoming = stored_integer(upcoming, path, "its next offset")
    if newest is not None and newest >= upcoming:
        raise CorruptError(f"`{path}` holds the offset {newest} but says that {upcoming} comes next")
    return PartitionOffsets(upcoming if oldest is None else oldest, upcoming)


def put_end(connection: sqlite3.Connection, path: str) -> None:
    """Record that no message will follow; in the caller's transaction."""
    connection.execute(_CREATE_ENDED)
    connection.execute("REPLACE INTO ended VALUES (0, ?)", (partition_ends(connection, path).upcoming,))


def has_ended(connection: sqlite3.Connection, path: str, upcoming: int) -> bool:
    """True if an end was recorded, and nothing was appended since. `upcoming`: the next offset."""
    if connection.execute(_ENDED_EXISTS).fetchone() is None:
        return False
    row = connection.execute("SELECT upcoming FROM ended").fetchone()
    return row is not None and stored_integer(row[0], path, "where it ended") == upcoming


def raise_fence(connection: sqlite3.Connection, ssp: SystemStreamPartition, writer: WriterIdentity) -> None:
    """Refuse older epochs of the writer from now on, in the caller's transaction. Raises FencedError if it is one."""
    seen = connection.execute("SELECT epoch FROM fence WHERE writer = ?", (writer.name,)).fetchone()
    epoch = -1 if seen is None else stored_integer(seen[0], str(ssp), f"the epoch of its writer `{writer.name}`")
    if epoch > writer.epoch:
        raise FencedError(
            f"the writer `{writer.name}` of epoch {writer.epoch} must not append to `{ssp.system_stream}` "
            f"partition {ssp.partition}: epoch {epoch} has taken over. Stop this run"
        )
    if epoch < writer.epoch:
        connection.execute("REPLACE INTO fence VALUES (?, ?)", (writer.name, writer.epoch))


def owner_of(connection: sqlite3.Connection) -> str | None:
    """The owner of the stream, in the file of partition 0."""
    if connection.execute(_OWNER_EXISTS).fetchone() is None:
        return None
    found = connection.execute("SELECT name FROM owner").fetchone()
    return None if found is None else str(found[0])


def check_has_no_owner(connection: sqlite3.Connection, ssp: SystemStreamPartition) -> None:
    """Raises:
    ConfigError: the stream has an owner.
    """
    if (owner := owner_of(connection)) is not None:
        raise ConfigError(
            f"the stream `{ssp.system_stream}` is {owned_stream(owner)}: its owner, {owner}, needs all its messages. "
            "It cannot have a retention"
        )


_PROGRESS_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'progress'"
_CREATE_PROGRESS = "CREATE TABLE progress (writer TEXT PRIMARY KEY, slot INTEGER NOT NULL, chunk INTEGER NOT NULL)"


def read_progress(connection: sqlite3.Connection, path: str, writer: str) -> Progress | None:
    if connection.execute(_PROGRESS_EXISTS).fetchone() is None:
        return None
    row = connection.execute("SELECT slot, chunk FROM progress WHERE writer = ?", (writer,)).fetchone()
    return None if row is None else Progress(*(stored_integer(each, path, "how far publishing is") for each in row))


def keep_progress(
    connection: sqlite3.Connection, path: str, ssp: SystemStreamPartition, writer: str, mark: Progress
) -> None:
    """Keep the mark, in the caller's transaction, which has checked the fence. Raises IncompatibleError if the writer's
    last mark is not smaller."""
    mark.check_follows(read_progress(connection, path, writer), ssp)
    if connection.execute(_PROGRESS_EXISTS).fetchone() is None:
        connection.execute(_CREATE_PROGRESS)
    connection.execute("REPLACE INTO progress VALUES (?, ?, ?)", (writer, mark.slot, mark.chunk))


_HEADER_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'header'"
_CREATE_HEADER = (
    "CREATE TABLE header (offset INTEGER PRIMARY KEY, packed BLOB NOT NULL)",
    "CREATE TRIGGER header_goes AFTER DELETE ON message BEGIN DELETE FROM header WHERE offset = OLD.offset; END",
)


def has_headers(connection: sqlite3.Connection) -> bool:
    """True if a message of the partition has, or had, headers."""
    return connection.execute(_HEADER_EXISTS).fetchone() is not None


def keep_headers(connection: sqlite3.Connection, packed: Sequence[tuple[int, bytes]]) -> None:
    """Keep the packed headers of messages, by offset, in the caller's transaction."""
    if not has_headers(connection):
        for statement in _CREATE_HEADER:
            connection.execute(statement)
    connection.executemany("INSERT INTO header VALUES (?, ?)", packed)


def add_headers(connection: sqlite3.Connection, path: str, chunk: list[RawMessage]) -> list[RawMessage]:
    """The messages with their headers. Raises CorruptError if some are damaged."""
    if not chunk or not has_headers(connection):
        return chunk
    rows = connection.execute("SELECT * FROM header WHERE offset BETWEEN ? AND ?", (chunk[0][0], chunk[-1][0]))
    found = dict(rows.fetchall())
    try:
        return [
            (*message[:4], unpack_headers(found[message[0]])) if message[0] in found else message for message in chunk
        ]
    except CorruptError as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from error
    except TypeError as error:  # the database holds no column to its type
        raise CorruptError(f"`{path}` is damaged: headers of a message are not readable: {error}") from error


_COMPACTED_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'compacted'"
_CREATE_COMPACTED = """
CREATE TABLE IF NOT EXISTS compacted (
    id INTEGER PRIMARY KEY CHECK (id = 0), start_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL,
    kept INTEGER NOT NULL)
"""
_FIND = """
CREATE TEMP TABLE superseded AS
SELECT offset FROM message WHERE offset < :start
UNION ALL
SELECT offset FROM message
 WHERE offset >= :start AND offset < :end AND key IS NOT NULL AND (value IS NULL OR offset NOT IN
    (SELECT MAX(offset) FROM message WHERE offset >= :start AND offset < :end AND key IS NOT NULL GROUP BY key))
"""
_DROP = "DELETE FROM message WHERE offset IN (SELECT offset FROM temp.superseded)"
# `peak` leads from a time to the first append that reached it. Once nothing is left between a row and the next one,
# the next one leads to the same message. The last row stays: it says which timestamps are new peaks.
_DROP_PEAKS = """
DELETE FROM peak WHERE timestamp < (SELECT MAX(timestamp) FROM peak) AND NOT EXISTS
    (SELECT 1 FROM message WHERE message.offset >= peak.offset AND message.offset <
        (SELECT later.offset FROM peak AS later WHERE later.timestamp > peak.timestamp
          ORDER BY later.timestamp LIMIT 1))
"""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The records that a compaction would drop, and those that stay in and before its range."""

    superseded: int
    kept: int


def read_compacted_state(connection: sqlite3.Connection) -> Compacted:
    if connection.execute(_COMPACTED_EXISTS).fetchone() is None:
        return Compacted()
    row = connection.execute("SELECT start_offset, end_offset, kept FROM compacted").fetchone()
    if row is None:
        return Compacted()
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    return Compacted(*(stored_integer(value, path, "what was compacted") for value in row))


def find_superseded(connection: sqlite3.Connection, offsets: OffsetRange) -> CompactionPlan:
    """Find the records that a compaction of the range drops, and keep them with the connection for `drop_superseded`.

    It takes no lock that an append would wait for. The records of the range exist already and never change, so
    the result stays true.
    """
    connection.execute(_FIND, {"start": offsets.start, "end": offsets.end})
    superseded = connection.execute("SELECT COUNT(*) FROM temp.superseded").fetchone()[0]
    total = connection.execute("SELECT COUNT(*) FROM message WHERE offset < ?", (offsets.end,)).fetchone()[0]
    return CompactionPlan(superseded, total - superseded)


def drop_superseded(connection: sqlite3.Connection, offsets: OffsetRange, kept: int) -> None:
    """Drop the records that were found and record the range as compacted; in the caller's transaction."""
    connection.execute(_DROP)
    connection.execute(_DROP_PEAKS)
    _write(connection, read_compacted_state(connection).with_range(offsets, kept))


def raise_start(connection: sqlite3.Connection, start: int) -> None:
    """Record that everything before `start` was dropped; in the caller's transaction."""
    _write(connection, read_compacted_state(connection).with_start(start))


def _write(connection: sqlite3.Connection, compacted: Compacted) -> None:
    connection.execute(_CREATE_COMPACTED)
    row = (compacted.start, compacted.end, compacted.kept)
    connection.execute("REPLACE INTO compacted VALUES (0, ?, ?, ?)", row)


_MARK_MS = 60_000
_MARKS = 1000
"""A mark stands for this part of the time since the oldest one, if that is more than a minute."""
_PIECE_MESSAGES = 10_000
_PIECE_BYTES = 16 << 20
_ROW_BYTES = 16
_RETENTION_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'retention'"
_CREATE_RETENTION = """
CREATE TABLE IF NOT EXISTS retention (
    id INTEGER PRIMARY KEY CHECK (id = 0), max_age_ms INTEGER, max_bytes INTEGER)
"""
_CREATE_MARK = "CREATE TABLE IF NOT EXISTS mark (offset INTEGER PRIMARY KEY, until INTEGER NOT NULL)"
_FIRST_MARK = "SELECT until FROM mark ORDER BY offset LIMIT 1"
_LAST_MARK = "SELECT until FROM mark ORDER BY offset DESC LIMIT 1"
_FIRST_KEPT = "SELECT offset FROM mark WHERE until >= ? ORDER BY offset LIMIT 1"
_OLDEST = """
SELECT offset, COALESCE(LENGTH(key), 0) + COALESCE(LENGTH(value), 0) FROM message WHERE offset < ? ORDER BY offset
"""
_OLDEST_HEADED = """
SELECT offset, COALESCE(LENGTH(key), 0) + COALESCE(LENGTH(value), 0) + COALESCE(LENGTH(packed), 0)
  FROM message LEFT JOIN header USING (offset) WHERE offset < ? ORDER BY offset
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """The most that is deleted in one transaction."""

    messages: int = _PIECE_MESSAGES
    size: int = _PIECE_BYTES

    @classmethod
    def after_append(cls, messages: int, grown_bytes: int) -> Piece:
        """At least twice the amount appended, so that the excess shrinks with every append."""
        return cls(max(_PIECE_MESSAGES, 2 * messages), max(_PIECE_BYTES, 2 * grown_bytes))


def read_retention(connection: sqlite3.Connection, path: str) -> StreamRetention:
    if connection.execute(_RETENTION_EXISTS).fetchone() is None:
        return StreamRetention()
    row = connection.execute("SELECT max_age_ms, max_bytes FROM retention").fetchone()
    age, size = (None, None) if row is None else row
    age = None if age is None else stored_integer(age, path, "its retention")
    size = None if size is None else stored_integer(size, path, "its retention")
    if (age is not None and age < 1) or (size is not None and size < LEAST_RETENTION_BYTES):
        raise CorruptError(f"`{path}` is damaged: its retention is {age} ms, {size} bytes")
    return StreamRetention(age, size)


def write_retention(connection: sqlite3.Connection, retention: StreamRetention) -> None:
    if retention.is_limited:
        connection.execute(_CREATE_RETENTION)
        connection.execute("REPLACE INTO retention VALUES (0, ?, ?)", (retention.max_age_ms, retention.max_bytes))
    elif connection.execute(_RETENTION_EXISTS).fetchone() is not None:
        connection.execute("DELETE FROM retention")


def mark_time(connection: sqlite3.Connection, path: str, first: int, now_ms: int) -> None:
    """Record that messages from `first` on are appended now, if a mark is due; in the caller's transaction.

    The first mark of a partition covers all existing messages.
    """
    connection.execute(_CREATE_MARK)
    last = connection.execute(_LAST_MARK).fetchone()
    if last is None:
        connection.execute("INSERT INTO mark VALUES (0, ?)", (now_ms + _MARK_MS,))
    elif now_ms > stored_integer(last[0], path, "the time of a mark"):
        oldest = stored_integer(connection.execute(_FIRST_MARK).fetchone()[0], path, "the time of a mark")
        until = now_ms + max(_MARK_MS, (now_ms - oldest) // _MARKS)
        connection.execute("REPLACE INTO mark VALUES (?, ?)", (first, until))


def live_bytes(connection: sqlite3.Connection) -> int:
    count, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((count - free) * size)


def trim(
    connection: sqlite3.Connection, path: str, retention: StreamRetention, end: int, now_ms: int, piece: Piece
) -> int:
    """Delete the oldest messages that are too old or too much; in the caller's transaction.

    Args:
        connection, path: the partition.
        retention: its limits.
        end: messages from this offset on stay. The newest message stays as well, unless it is too old.
        now_ms: wall time in epoch milliseconds.
        piece: the limits of this deletion; the next call continues.

    Returns:
        the number of messages that were deleted.
    """
    old_end = 0
    if retention.max_age_ms is not None:
        kept = connection.execute(_FIRST_KEPT, (now_ms - retention.max_age_ms,)).fetchone()
        old_end = end if kept is None else stored_integer(kept[0], path, "the offset of a mark")
    excess = 0 if retention.max_bytes is None else live_bytes(connection) - retention.max_bytes
    if old_end == 0 and excess <= 0:
        return 0
    newest = connection.execute("SELECT MAX(offset) FROM message").fetchone()[0]
    stop, messages, size = 0, 0, 0
    with closing(connection.execute(_OLDEST_HEADED if has_headers(connection) else _OLDEST, (end,))) as oldest:
        for offset, length in oldest:
            if offset >= old_end and (size >= excess or offset == newest):
                break
            if messages >= piece.messages or size >= piece.size:
                break
            stop, messages, size = offset + 1, messages + 1, size + length + _ROW_BYTES
    if messages:
        _drop_before(connection, stop, messages)
    return messages


def _drop_before(connection: sqlite3.Connection, stop: int, messages: int) -> None:
    """Drop these messages, and the peaks and marks that lead to nothing else."""
    connection.execute("DELETE FROM message WHERE offset < ?", (stop,))
    # Timestamps and offsets of peaks rise together. The last peak at or before `stop` still leads to what is there.
    peaks = connection.execute("SELECT timestamp, offset FROM peak ORDER BY timestamp LIMIT ?", (messages + 2,))
    passed = [timestamp for timestamp, offset in peaks.fetchall() if offset <= stop]
    if passed:
        connection.execute("DELETE FROM peak WHERE timestamp < ?", (passed[-1],))
    connection.execute("DELETE FROM mark WHERE offset < (SELECT MAX(offset) FROM mark WHERE offset <= ?)", (stop,))
    raise_start(connection, stop)
