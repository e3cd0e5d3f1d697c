"""Tables of a database as outputs, on SQLite. tests/integration/databases has the same on PostgreSQL."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError, SystemAwayError, UserCodeError
from penstock.retry import Retry
from penstock.system.base import Progress, WriterIdentity
from penstock.system.database import connection
from penstock.system.database.system import DatabaseSystem
from tests.support.databases.shop import Shop, kill_at_every_step, messages, oracle, records, ssp
from tests.support.databases.upsert_world import UpsertWorld
from tests.support.world.sums_job import drain


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(f"sqlite:///{tmp_path}/shop.db")


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_are_those_of_the_messages(shop: Shop, seed: int) -> None:
    rng = random.Random(seed)
    sent = messages(rng, 200)
    writer, at = shop.system.writer(WriterIdentity("job-1", 1)), 0
    while at < len(sent):
        number = rng.randrange(1, 30)
        with writer.begin() as transaction:
            transaction.append(ssp(0), records(sent[at : at + number]))
        at += number
        assert shop.rows() == oracle(sent[:at])
    writer.close()


def test_rows_and_marks_become_valid_together(shop: Shop) -> None:
    shop.publish(4, (0, Progress(7, 1), records([("a", 1, {"amount": 1})])), (2, Progress(7, 0), []))
    assert shop.rows() == [("a", 1, 1, "new")]
    marks = {ssp(0): Progress(7, 1), ssp(2): Progress(7, 0)}
    admin, writer = shop.system.admin(), shop.system.writer(WriterIdentity("job-1", 4))
    every = [ssp(partition) for partition in range(3)]
    assert writer.progress(every) == marks == admin.progress_of("job-1", every)
    assert admin.progress_of("job-2", every) == {}
    for wrong in (Progress(7, 1), Progress(6, 9)):
        with pytest.raises(IncompatibleError, match="already published"):
            shop.publish(4, (1, Progress(1, 0), records([("b", 1, {})])), (0, wrong, records([("c", 1, {})])))
    assert shop.rows() == [("a", 1, 1, "new")]
    assert writer.progress(every) == marks
    with pytest.raises(ZeroDivisionError), writer.begin() as transaction:  # noqa: PT012
        transaction.append(ssp(0), records([("b", 1, {})]))
        transaction.mark(ssp(0), Progress(9, 0))
        raise ZeroDivisionError
    assert shop.rows() == [("a", 1, 1, "new")]
    with pytest.raises(ConfigError, match="without a name"), shop.system.writer(None).begin() as transaction:
        transaction.mark(ssp(0), Progress(9, 0))
    writer.close()
    admin.close()


def test_an_older_epoch_writes_nothing_any_more(shop: Shop) -> None:
    old = shop.system.writer(WriterIdentity("job-1", 4))
    old.append(ssp(0), records([("a", 1, {})]))
    shop.system.admin().fence("totals", WriterIdentity("job-1", 5))
    for partition in range(3):
        with pytest.raises(FencedError, match="epoch 5 has taken over"):
            old.append(ssp(partition), records([("b", 1, {})]))
    with pytest.raises(FencedError):
        old.progress([ssp(1)])
    with pytest.raises(FencedError):
        shop.system.admin().fence("totals", WriterIdentity("job-1", 4))
    shop.publish(5, (0, Progress(1, 0), records([("c", 1, {})])))
    for other in (WriterIdentity("job-2", 1), None):
        shop.system.writer(other).append(ssp(0), records([("d", 1 if other else 2, {})]))
    assert [row[:2] for row in shop.rows()] == [("a", 1), ("c", 1), ("d", 1), ("d", 2)]


def test_a_writer_that_dies_at_any_step(shop: Shop) -> None:
    assert kill_at_every_step(shop) >= 8


def test_the_table_of_marks_is_not_made_by_questions(shop: Shop) -> None:
    admin = shop.system.admin()
    assert admin.partition_count("totals") == 3
    assert admin.progress_of("job-1", [ssp(0)]) == {}
    assert not admin.keeps_progress_of("job-1")
    shop.system.writer(None).append(ssp(0), records([("a", 1, {})]))
    assert not admin.keeps_progress_of("job-1")
    admin.fence("totals", WriterIdentity("job-1", 1))
    assert admin.keeps_progress_of("job-1")
    assert admin.progress_place("job-1") == "the table `penstock_progress`"


def test_the_database_refuses_a_row(shop: Shop, tmp_path: Path) -> None:
    shop.execute(
        "CREATE TRIGGER large BEFORE INSERT ON totals WHEN new.amount > 50 BEGIN SELECT raise(ABORT, 'too large'); END"
    )
    sent = records([("a", 1, {"amount": 50}), ("a", 2, {"amount": 51}), ("a", 3, None)])
    said = (
        rf"`db.totals` cannot be written, in the sqlite database `{tmp_path}/shop.db`: too large. .* shop = a, hour = 2"
    )
    with pytest.raises(ps.PenstockError, match=said) as caught:
        shop.publish(1, (0, Progress(1, 0), sent))
    assert isinstance(caught.value, ConfigError)
    assert shop.rows() == []
    assert shop.progress(1) is None
    shop.execute("DROP TRIGGER large")
    shop.publish(1, (0, Progress(1, 0), sent))
    assert [row[:3] for row in shop.rows()] == [("a", 1, 50), ("a", 2, 51)]


def test_a_record_that_is_no_change_is_refused_before_anything_is_written(shop: Shop) -> None:
    for bad, said in ((b'{"shop": "a", "hour": 1, "summe": 2}', "no column `summe`"), ("text", "are bytes, not str")):
        with pytest.raises(ConfigError, match=said):
            shop.system.writer(None).append(ssp(0), [*records([("a", 1, {})]), (0, None, bad)])  # type: ignore[list-item]
    with pytest.raises(NotFoundError, match="has 3 partitions: there is no partition 3"):
        shop.system.writer(None).append(ssp(3), [])
    assert shop.rows() == []


def test_a_lock_that_others_hold_is_waited_for(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WAITS", {"pysqlite": {"timeout": 0.01}})
    monkeypatch.setattr("penstock.system.database.writer._AGAIN", Retry(pause_s=0.01, within_s=0.2))
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    writer = shop.system.writer(WriterIdentity("job-1", 1))
    writer.append(ssp(0), [])
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ps.RetryableError, match="database is locked"):
        writer.append(ssp(0), records([("a", 1, {})]))
    other.execute("COMMIT")
    writer.append(ssp(0), records([("a", 1, {})]))
    assert [row[:2] for row in shop.rows()] == [("a", 1)]
    writer.close()
    other.close()


def test_a_table_needs_a_key_that_is_unique(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", **{"key.plain": "a, b", "key.wrong": "a", "key.odd": "z"})
    admin = shop.system.admin()
    for name in ("plain", "wrong", "odd", "keyless", "partly"):
        shop.execute(f"CREATE TABLE {name} (a INTEGER, b INTEGER, c INTEGER)")
    with pytest.raises(ConfigError, match="no unique index of exactly these columns"):
        admin.partition_count("plain")
    shop.execute("CREATE UNIQUE INDEX u ON plain (b, a)")
    assert admin.partition_count("plain") == 3
    writer = shop.system.writer(None)
    writer.append(ssp(0, "plain"), [(0, None, b'{"a": 1, "b": 2, "c": %d}' % n) for n in range(3)])
    writer.append(ssp(0, "plain"), [(0, None, b'{"a": 2, "b": 2}'), (0, b'{"a": 2, "b": 2}', None)])
    assert shop.execute("SELECT * FROM plain") == [(1, 2, 2)]
    shop.execute("CREATE UNIQUE INDEX v ON wrong (a) WHERE b > 0")
    for name, said in (
        ("wrong", "`systems.db.key.wrong` = `a` is no key"),
        ("odd", "names `z`, and the table has the columns a, b, c"),
        ("keyless", "has no primary key.*`systems.db.key.keyless: shop, hour_ms`"),
    ):
        with pytest.raises(ConfigError, match=said):
            admin.partition_count(name)
    with pytest.raises(ConfigError, match=r"there is no table `nowhere`.*creates no tables"):
        admin.create_stream("nowhere", 3)
    assert admin.create_stream("totals", 3) is False
    with pytest.raises(IncompatibleError, match="exists with 3 partitions, not 4"):
        admin.create_stream("totals", 4)


def test_rows_of_key_columns_alone(shop: Shop) -> None:
    shop.execute("CREATE TABLE members (name TEXT PRIMARY KEY)")
    writer = shop.system.writer(None)
    writer.append(ssp(0, "members"), [(0, b"ann", b"{}"), (0, b"ann", b"{}"), (0, b"bob", b"{}"), (0, b"bob", None)])
    assert shop.execute("SELECT * FROM members") == [("ann",)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "`systems.db.url` is missing"),
        ({"url": "nonsense s3cret"}, "is no URL of SQLAlchemy"),
        ({"url": "postgresql+psycopg://me:s3cret@host/shop"}, "has a password.*systems.db.password"),
        ({"url": "postgresql+psycopg://me@host/shop?sslpassword=s3cret"}, "has a password"),
        ({"url": "oracle://me@host/shop"}, "PostgreSQL, SQLite, MySQL, MariaDB"),
        ({"url": "postgresql+nothing://me@host/shop"}, "does not know"),
        ({"url": "postgresql+psycopg2cffi://me@host/shop"}, "psycopg"),
        ({"url": "sqlite://"}, "names no file"),
        ({"url": "sqlite:////x.db", "partitions": "0"}, "is not a number from 1"),
        ({"url": "sqlite:////x.db", "key.t": "a,,b"}, "`systems.db.key.t` = `a,,b` names no columns"),
        ({"url": "sqlite:////x.db", "user": "me"}, "unknown options: `systems.db.user`"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        DatabaseSystem.configured("db", options)
    assert "s3cret" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    options = {"url": "postgresql+psycopg://me@127.0.0.1:1/shop", "password": "s3cret"}
    system = DatabaseSystem.configured("db", options)
    assert "s3cret" not in repr(system)
    with pytest.raises(SystemAwayError, match=r"postgresql database `shop` at 127\.0\.0\.1:1") as caught:
        system.admin().partition_count("totals")
    assert "s3cret" not in str(caught.value)


def test_a_file_that_cannot_be_opened_is_away(tmp_path: Path) -> None:
    system = DatabaseSystem.configured("db", {"url": f"sqlite:///{tmp_path}/missing/shop.db"})
    with pytest.raises(SystemAwayError):
        system.admin().partition_count("totals")


def test_it_is_not_read(shop: Shop) -> None:
    for ask in (shop.system.reader, lambda: shop.system.admin().offsets("totals")):
        with pytest.raises(ConfigError, match="writes tables of a database and does not read them"):
            ask()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[UpsertWorld]:
    world = UpsertWorld(tmp_path)
    yield world
    world.close()


def test_each_message_is_there_once(world: UpsertWorld) -> None:
    """One driver after the other is killed: before a transaction of the database, within it, and behind it."""
    world.kill_drivers("after the record", "begin", "mark", "commit", "committed")
    world.finish()


def test_a_value_that_fits_no_row_fails_in_its_operator(world: UpsertWorld) -> None:
    driver = world.next()
    driver.loop.start()
    world.put(1, 1_000_000)
    with pytest.raises(UserCodeError, match=r'`total` of `db\.sums`, INTEGER: "a million" is not an integer') as caught:
        drain(driver)
    assert caught.value.failed.operator == "send_to-1"


def test_a_row_that_the_database_refuses_waits_for_the_table(tmp_path: Path) -> None:
    """The checkpoint has the message: each start ends until the table takes it."""
    world = UpsertWorld(tmp_path, largest=50)
    driver = world.next()
    driver.loop.start()
    world.put(1, 60)
    drain(driver)

    def publish() -> None:
        driver.loop.commit()
        driver.loop.finish()

    with pytest.raises(
        ps.PenstockError, match=r"the sum is too large\. It is the row with the key word = b, total = 60"
    ):
        publish()
    world.kill(driver)
    again = world.next()
    with pytest.raises(ps.PenstockError, match="the sum is too large"):
        again.loop.start()
    world.kill(again)
    world.execute("DROP TRIGGER large")
    world.finish()
    world.close()


def test_marks_that_were_lost_are_noticed(world: UpsertWorld) -> None:
    world.kill_drivers("committed")
    world.execute("DROP TABLE penstock_progress")
    with pytest.raises(IncompatibleError, match="has lost the table `penstock_progress`"):
        world.next()


def test_a_table_is_refused_as_an_input(world: UpsertWorld) -> None:
    app = ps.StreamApplication("reading")
    app.input("db.sums").send_to(app.output("m.copies"))
    with pytest.raises(ConfigError, match="does not read them"):
        world.make(app.graph(), {key: text for key, text in world.keys.items() if key.startswith("systems.")})
