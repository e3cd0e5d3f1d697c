"""The progress of writers in publishing to a partition of the local system.

The table `progress` has a row by writer name. The first mark makes the table.
"""

from __future__ import annotations

import sqlite3

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import Progress
from penstock.system.local.sqlite import stored_integer

_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'progress'"
_CREATE = "CREATE TABLE progress (writer TEXT PRIMARY KEY, slot INTEGER NOT NULL, chunk INTEGER NOT NULL)"


def read_progress(connection: sqlite3.Connection, path: str, writer: str) -> Progress | None:
    if connection.execute(_EXISTS).fetchone() is None:
        return None
    row = connection.execute("SELECT slot, chunk FROM progress WHERE writer = ?", (writer,)).fetchone()
    return None if row is None else Progress(*(stored_integer(each, path, "how far publishing is") for each in row))


def keep_progress(
    connection: sqlite3.Connection, path: str, ssp: SystemStreamPartition, writer: str, mark: Progress
) -> None:
    """Keep the mark, in the caller's transaction, which has checked the fence. Raises IncompatibleError if the writer's
    last mark is not smaller."""
    mark.check_follows(read_progress(connection, path, writer), ssp)
    if connection.execute(_EXISTS).fetchone() is None:
        connection.execute(_CREATE)
    connection.execute("REPLACE INTO progress VALUES (?, ?, ?)", (writer, mark.slot, mark.chunk))
