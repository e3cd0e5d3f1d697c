"""A table of a shop, messages about it, and the rows that they must come to."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import orjson
import sqlalchemy as sa

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import Progress, RawRecord, WriterIdentity
from penstock.system.database.system import DatabaseSystem

PARTITIONS = 3
TOTALS = (
    "CREATE TABLE totals (shop VARCHAR(20) NOT NULL, hour INTEGER NOT NULL, amount BIGINT, "
    "note VARCHAR(20) DEFAULT 'new', PRIMARY KEY (shop, hour))"
)
Row = dict[str, Any]
Sent = tuple[str, int, Row | None]
"""The shop, the hour, and the other columns; None deletes."""


class Shop:
    """A database with the table `totals`.

    Args:
        url: the database, without a password.
        password: the password.
    """

    def __init__(self, url: str, password: str | None = None, **options: str) -> None:
        own = {"url": url, "partitions": str(PARTITIONS), **options}
        self.options = own if password is None else {**own, "password": password}
        self.system: DatabaseSystem = pickle.loads(pickle.dumps(DatabaseSystem.configured("db", self.options)))
        self._engine = sa.create_engine(sa.make_url(url).set(password=password), poolclass=sa.NullPool)
        self.execute("DROP TABLE IF EXISTS totals")
        self.execute("DROP TABLE IF EXISTS penstock_progress")
        self.execute(TOTALS)

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with self._engine.begin() as connection:
            found = connection.exec_driver_sql(text)
            return [tuple(row) for row in found] if found.returns_rows else []

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.execute("SELECT shop, hour, amount, note FROM totals"))

    def publish(self, epoch: int, *parts: tuple[int, Progress, list[RawRecord]]) -> None:
        """One transaction of a new writer: partitions, marks and records."""
        writer = self.system.writer(WriterIdentity("job-1", epoch))
        try:
            with writer.begin() as transaction:
                for partition, mark, records in parts:
                    transaction.append(ssp(partition), records)
                    transaction.mark(ssp(partition), mark)
        finally:
            writer.close()

    def progress(self, epoch: int, partition: int = 0) -> Progress | None:
        """The mark, as one that takes over sees it."""
        writer = self.system.writer(WriterIdentity("job-1", epoch))
        try:
            return writer.progress([ssp(partition)]).get(ssp(partition))
        finally:
            writer.close()


def ssp(partition: int, stream: str = "totals") -> SystemStreamPartition:
    return SystemStreamPartition("db", stream, partition)


def messages(rng: random.Random, number: int) -> list[Sent]:
    """Upserts of some or all columns, and deletes, of few rows."""
    found: list[Sent] = []
    for _ in range(number):
        row: Row | None = {}
        for column, value in (("amount", rng.choice([None, rng.randrange(100)])), ("note", rng.choice("xyz"))):
            if row is not None and rng.random() < 0.7:
                row[column] = value
        found.append((rng.choice(["a", "A", "b"]), rng.randrange(2), None if rng.random() < 0.25 else row))
    return found


def records(sent: Iterable[Sent]) -> list[RawRecord]:
    found: list[RawRecord] = []
    for shop, hour, row in sent:
        key = orjson.dumps({"hour": hour, "shop": shop})
        found.append((0, key, None if row is None else orjson.dumps({"shop": shop, "hour": hour, **row})))
    return found


def oracle(sent: Iterable[Sent]) -> list[tuple[Any, ...]]:
    """The rows, by a dict: each message after the other."""
    rows: dict[tuple[str, int], Row] = {}
    for shop, hour, row in sent:
        if row is None:
            rows.pop((shop, hour), None)
        else:
            rows.setdefault((shop, hour), {"amount": None, "note": "new"}).update(row)
    return sorted((shop, hour, row["amount"], row["note"]) for (shop, hour), row in rows.items())


def killed(step: int, work: Callable[[], None]) -> bool:
    """Do the work in a process that dies before this step, a statement or a commit. True if it came to its end."""
    child = os.fork()
    if child == 0:
        steps = count(1)

        def at(*_: object) -> None:
            if next(steps) == step:
                os._exit(1)

        try:
            sa.event.listen(sa.Engine, "before_cursor_execute", at)
            sa.event.listen(sa.Engine, "commit", at)
            work()
        except BaseException:
            os._exit(2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), "the process failed"
    return status == 0


def kill_at_every_step(shop: Shop) -> int:
    """A writer for each step of a publication, which dies there; the next one publishes what is missing. The rows are
    those of the oracle. Returns the number of steps."""
    rng, sent = random.Random(7), list[Sent]()
    for step in count(1):
        own, mark = messages(rng, 6), Progress(step, 0)
        done = killed(step, lambda: shop.publish(2 * step, (0, mark, records(own))))  # noqa: B023
        published = shop.progress(2 * step + 1) == mark
        assert shop.rows() == oracle([*sent, *own] if published else sent)
        assert published or not done
        if not published:
            shop.publish(2 * step + 1, (0, mark, records(own)))
        sent += own
        assert shop.rows() == oracle(sent)
        if done:
            return step
    raise AssertionError
