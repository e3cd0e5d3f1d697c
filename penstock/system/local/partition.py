"""The parts of a partition that admin, readers and writers share: its ends, fence, owner, progress and headers.

The table `progress` has how far writers have published to it, a row by writer name. The first mark makes the table.

The table `header` has a row for each message that has headers. The first of them makes the table, and a trigger, by
which the headers go with their message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec import MsgspecError

from penstock.api.messages import unpack_headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import owned_stream
from penstock.errors import ConfigError, CorruptError, FencedError
from penstock.system.base import PartitionOffsets, Progress, RawMessage, WriterIdentity
from penstock.system.local.sqlite import stored_integer

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
    except (MsgspecError, TypeError) as error:
        raise CorruptError(f"`{path}` is damaged: headers of a message are not readable: {error}") from error
