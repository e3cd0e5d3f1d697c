"""Compaction of a partition of the local system.

The state of compaction is in a separate table, `compacted`, which the first compaction or the first deletion by
retention makes. Its one row has the start of the partition, the end of its compacted part, and the number of records
left there.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from penstock.system.base import OffsetRange
from penstock.system.local.sqlite import stored_integer
from penstock.system.ranges import Compacted

_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'compacted'"
_CREATE = """
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
    if connection.execute(_EXISTS).fetchone() is None:
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
    connection.execute(_CREATE)
    row = (compacted.start, compacted.end, compacted.kept)
    connection.execute("REPLACE INTO compacted VALUES (0, ?, ?, ?)", row)
