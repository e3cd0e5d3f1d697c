"""The parts of a partition that admin, readers and writers share: its ends, its fence, its owner."""

from __future__ import annotations

import sqlite3

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import owned_stream
from penstock.errors import ConfigError, CorruptError, FencedError
from penstock.system.base import PartitionOffsets, WriterIdentity
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
