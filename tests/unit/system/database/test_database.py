"""Tables of a database as outputs, on SQLite. tests/integration/databases has the same on PostgreSQL."""

from __future__ import annotations

import json
import logging
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.requests import StartpointOldest
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import Retry
from penstock.driver.failures import Outages
from penstock.errors import (
    ConfigError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    SystemAwayError,
    SystemRefusedError,
    UserCodeError,
)
from penstock.job.commands import new_uuid
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import RequestKey, StartpointRequest
from penstock.system.base import Progress, WriterIdentity
from penstock.system.database import connection
from penstock.system.database.system import DatabaseSystem
from tests.support.databases.shop import Shop, kill_at_every_step, messages, oracle, records, ssp
from tests.support.databases.upsert_world import UpsertWorld
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import ROOT
from tests.support.world.sums_job import TASKS, drain, drain_and_commit, state


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


@pytest.mark.slow
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
    monkeypatch.setattr("penstock.base.retry._CONTENDED", Retry(pause_s=0.01, within_s=0.2))
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    writer = shop.system.writer(WriterIdentity("job-1", 1))
    writer.append(ssp(0), [])
    other.execute("BEGIN IMMEDIATE")
    admin, done = shop.system.admin(), []
    asks: list[Callable[[], object]] = [
        lambda: writer.append(ssp(0), records([("a", 1, {})])),
        lambda: writer.progress([ssp(0)]),
        lambda: shop.system.writer(None).append(ssp(0), []),
        lambda: admin.partition_count("totals"),
        lambda: admin.record_limits("totals"),
        lambda: admin.fence("totals", WriterIdentity("job-1", 1)),
        lambda: admin.keeps_progress_of("job-1"),
        lambda: admin.progress_of("job-1", [ssp(0)]),
    ]
    for ask in asks:
        with pytest.raises(
            SystemAwayError, match=r"database is locked\. Another program .* has held the lock"
        ) as caught:
            ask()
        done.append(type(caught.value))
    assert set(done) == {SystemAwayError}, "its name is that of the kind, for other processes"
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


@pytest.mark.parametrize("key", ["shop, hour", ""])
@pytest.mark.parametrize("name", ["Sums", "SUMS", "sums", "sUMS"])
def test_a_table_is_found_in_any_case(tmp_path: Path, name: str, key: str) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", **({"key.sums": key} if key else {}))
    constraint = "UNIQUE (hour, shop)" if key else "PRIMARY KEY (shop, hour)"
    shop.execute(f'CREATE TABLE "{name}" (shop TEXT, hour INTEGER, amount INTEGER, {constraint})')
    assert shop.system.admin().partition_count("sums") == 3
    writer = shop.system.writer(None)
    writer.append(ssp(0, "sums"), [(0, None, b'{"shop": "a", "hour": 1, "amount": %d}' % n) for n in range(3)])
    writer.close()
    assert shop.execute("SELECT * FROM sums") == [("a", 1, 2)]


@pytest.mark.parametrize("key", ["shop, hour", ""])
def test_a_view_is_no_table(tmp_path: Path, key: str) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", **({"key.shown": key} if key else {}))
    shop.execute("CREATE VIEW Shown AS SELECT * FROM totals")
    with pytest.raises(ConfigError, match=r"`db.shown` is a view in .*, and an upsert needs a table with a key"):
        shop.system.admin().partition_count("shown")


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
        ({"url": "shop.db"}, "`sqlite:////path` for a file of SQLite"),
        ({"url": "mysql://me@host/shop"}, r"pip install pymysql and `mysql\+pymysql://`"),
        ({"url": "postgresql+psycopg://me:s3cret@host/shop"}, "has a password.*systems.db.password"),
        ({"url": "postgresql+psycopg://me@host/shop?sslpassword=s3cret"}, "has a password"),
        ({"url": "oracle://me@host/shop"}, "PostgreSQL, SQLite, MySQL, MariaDB"),
        ({"url": "postgresql+nothing://me@host/shop"}, "does not know"),
        ({"url": "postgresql+psycopg2cffi://me@host/shop"}, "psycopg"),
        ({"url": "sqlite://"}, "names no file"),
        *(({"url": "sqlite:////x.db", "partitions": text}, "is not a number from 1") for text in ("0", "9" * 5000)),
        ({"url": "sqlite:////x.db", "key.t": "a,,b"}, "`systems.db.key.t` = `a,,b` names no columns"),
        ({"url": "sqlite:////x.db", "user": "me"}, "unknown options: `systems.db.user`.*`key.<table>`, `partitions`"),
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
    with pytest.raises(
        SystemAwayError, match=rf"The folder `{tmp_path}/missing` does not exist: create it, or correct"
    ):
        system.admin().partition_count("totals")


def test_a_file_that_was_deleted_is_no_fault_of_a_row(shop: Shop, tmp_path: Path) -> None:
    writer = shop.system.writer(WriterIdentity("job-1", 1))
    writer.append(ssp(0), records([("a", 1, {})]))
    (tmp_path / "shop.db").rename(tmp_path / "moved.db")
    with pytest.raises(SystemRefusedError, match=r"deleted, moved or replaced.*`A database that was lost") as caught:
        writer.append(ssp(0), records([("a", 2, {})]))
    assert "row" not in str(caught.value)
    (tmp_path / "moved.db").rename(tmp_path / "shop.db")
    writer.append(ssp(0), records([("a", 2, {})]))
    assert [row[:2] for row in shop.rows()] == [("a", 1), ("a", 2)]


def test_a_file_that_cannot_be_written_is_no_fault_of_a_row(shop: Shop, tmp_path: Path) -> None:
    url = f"sqlite:///file:{tmp_path}/shop.db?mode=ro&uri=true"
    writer = DatabaseSystem.configured("db", {"url": url}).writer(None)
    with pytest.raises(SystemRefusedError, match=r"cannot be written.*the right to write both") as caught:
        writer.append(ssp(0), records([("a", 1, {})]))
    assert "takes the row" not in str(caught.value)


def test_a_key_of_a_table_that_is_no_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", **{"key.totals": "shop, hour", "key.total": "shop"})
    admin = shop.system.admin()
    admin.partition_count("totals")
    for _ in range(2):
        admin.fence("totals", WriterIdentity("job-1", 1))
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told.startswith("`systems.db.key.total` has no effect: the job has no output `db.total`.")


def test_it_is_not_read(shop: Shop) -> None:
    for ask in (shop.system.reader, lambda: shop.system.admin().offsets("totals")):
        with pytest.raises(ConfigError, match="writes tables of a database and does not read them"):
            ask()


world = fixture_of(UpsertWorld)


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


def test_a_result_of_an_aggregate_that_fits_no_row_is_a_dead_letter(world: UpsertWorld) -> None:
    app = ps.StreamApplication("sums")
    events = app.input("m.events", key=ps.String(), value=ps.Integer())
    events.partition_by(lambda event: event.key, envelope=True).aggregate(
        {"total": ps.Max(lambda number: "a million" if number == 1_000_000 else number)}, id="most"
    ).map(lambda sent: {"word": sent.key, **sent.value}, envelope=True).send_to(app.output("db.sums"))
    driver = world.make(app.graph(), {**world.keys, "task.dead.letter.stream": "m.dead"})
    driver.loop.start()
    world.put(1, 1_000_000)
    drain(driver)
    (letter,) = [json.loads(value or b"") for _, _, value, *_ in world.records("dead")]
    assert '"a million" is not an integer' in letter["reason"]
    assert "with ps.Columns, filter or map them, or change the column of the table" in letter["reason"]


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_run_waits_while_others_have_the_database_locked(
    world: UpsertWorld, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """In a new epoch, which fences the table, and in a batch, which writes to it."""
    monkeypatch.setattr(connection, "_WAITS", {"pysqlite": {"timeout": 0.01}})
    monkeypatch.setattr("penstock.base.retry._CONTENDED", Retry(pause_s=0.01, within_s=0.05))
    world.keys["streams.db.sums.output.guarantee"] = guarantee
    world.keys["job.retry.max"] = 1  # the container that is lost counts
    driver = world.next()
    driver.loop.start()
    world.put(1, 2, 3)
    drain_and_commit(driver)
    other, waited, wait = sqlite3.connect(world.file, isolation_level=None), [], Outages.wait

    def unlock(outages: Outages, error: SystemAwayError) -> None:
        wait(outages, error)
        assert "database is locked" in str(driver.board.outage)
        waited.append(error)
        if len(waited) == 5:
            other.execute("ROLLBACK")

    monkeypatch.setattr(Outages, "wait", unlock)
    other.execute("BEGIN IMMEDIATE")
    if guarantee == "exactly-once":
        driver.fleet.lose(0)
        driver.loop.step()
    else:
        world.put(4, 5)
        while len(waited) < 5:
            driver.loop.step()
    assert len(waited) == 5
    world.put(6)
    drain(driver)
    driver.loop.finish()
    assert driver.board.outage is None
    if guarantee == "exactly-once":
        world.check(driver)
    world.kill(driver)
    other.close()


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
    with pytest.raises(IncompatibleError, match="has lost the table `penstock_progress`") as caught:
        world.next()
    command = "`penstock startpoint set JOB --all-partitions --oldest --with-state clear --stream m.events`"
    assert f"create them too, and let the job send everything again: {command}, then start it" in str(caught.value)


def test_a_database_that_was_lost_is_filled_again(world: UpsertWorld) -> None:
    """As docs/databases.md says: its statement makes the table of the marks, a startpoint sends everything again."""
    world.kill_drivers("committed")
    world.finish()
    world.file.unlink()
    world.create()
    page = (ROOT / "docs" / "databases.md").read_text(encoding="utf-8")
    world.execute(next(block for block in page.split("```") if "CREATE TABLE penstock_progress" in block)[len("sql") :])
    manager = StartpointManager(world.objects, world.paths)
    for partition in range(TASKS):
        key = RequestKey(SystemStreamPartition("m", "events", partition), None)
        manager.write(StartpointRequest(key, new_uuid().hex, StartpointOldest(), "clear"))
    driver = world.next()
    driver.loop.start()
    drain(driver)
    driver.loop.finish()
    assert state(driver) == world.sums
    found = dict(sorted(world.execute("SELECT word, total FROM sums"), key=lambda row: int(row[1])))
    assert found == world.sums


def test_a_table_is_refused_as_an_input(world: UpsertWorld) -> None:
    app = ps.StreamApplication("reading")
    app.input("db.sums").send_to(app.output("m.copies"))
    with pytest.raises(ConfigError, match="does not read them"):
        world.make(app.graph(), {key: text for key, text in world.keys.items() if key.startswith("systems.")})
