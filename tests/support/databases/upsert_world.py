"""The job of sums with an exactly-once output in a table of SQLite, where triggers note each change of a row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from penstock.system.database.system import DatabaseSystem
from tests.support.world.once_world import OnceWorld

_TABLES = """
CREATE TABLE sums (word TEXT, total INTEGER, PRIMARY KEY (word, total));
CREATE TABLE seen (word TEXT, total INTEGER);
CREATE TRIGGER added AFTER INSERT ON sums BEGIN INSERT INTO seen VALUES (new.word, new.total); END;
CREATE TRIGGER changed AFTER UPDATE ON sums BEGIN INSERT INTO seen VALUES (new.word, new.total); END;
"""


class UpsertWorld(OnceWorld):
    """The output is a table with a row for each word and sum, so that no message replaces another one."""

    def __init__(self, folder: Path, largest: int = 1 << 62) -> None:
        """`largest`: the database refuses larger sums."""
        super().__init__(folder)
        self.file = folder / "sums.db"
        self.create()
        self.execute(
            f"CREATE TRIGGER large BEFORE INSERT ON sums WHEN new.total > {largest} "
            "BEGIN SELECT raise(ABORT, 'the sum is too large'); END"
        )
        rows = self.sums_of().map(lambda sent: row(sent.key, sent.value), envelope=True, id="row")
        rows.send_to(self.app.output("db.sums"))
        url = f"sqlite:///{self.file}"
        keys = {"systems.db.samza.factory": "database", "systems.db.url": url}
        self.write_to("db", "sums", DatabaseSystem.configured("db", {"url": url}), keys)

    def create(self) -> None:
        """Make the tables in an empty database."""
        with sqlite3.connect(self.file) as database:
            database.executescript(_TABLES)

    def execute(self, text: str) -> list[Any]:
        with sqlite3.connect(self.file) as database:
            return database.execute(text).fetchall()

    def output(self) -> list[tuple[str, int]]:
        seen = self.execute("SELECT word, total FROM seen")
        assert sorted(seen) == sorted(self.execute("SELECT word, total FROM sums"))
        return seen


def row(word: str, total: int) -> dict[str, Any]:
    """A row; one of a million does not fit the table."""
    return {"word": word, "total": "a million" if total == 1_000_000 else total}
