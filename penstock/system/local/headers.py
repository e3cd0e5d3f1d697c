"""The headers of messages in a partition of the local system.

The table `header` has a row for each message that has headers. The first of them makes the table, and a trigger, by
which the headers go with their message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec import MsgspecError

from penstock.api.messages.headers import unpack_headers
from penstock.errors import CorruptError
from penstock.system.base import RawMessage

_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'header'"
_CREATE = (
    "CREATE TABLE header (offset INTEGER PRIMARY KEY, packed BLOB NOT NULL)",
    "CREATE TRIGGER header_goes AFTER DELETE ON message BEGIN DELETE FROM header WHERE offset = OLD.offset; END",
)


def has_headers(connection: sqlite3.Connection) -> bool:
    """True if a message of the partition has, or had, headers."""
    return connection.execute(_EXISTS).fetchone() is not None


def keep_headers(connection: sqlite3.Connection, packed: Sequence[tuple[int, bytes]]) -> None:
    """Keep the packed headers of messages, by offset, in the caller's transaction."""
    if not has_headers(connection):
        for statement in _CREATE:
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
