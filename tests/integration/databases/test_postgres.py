"""Tables of PostgreSQL as outputs: writers that are killed, cut off, locked out, and at once."""

from __future__ import annotations

import random
import threading
import time

import pytest

from penstock.errors import FencedError, SystemAwayError, SystemRefusedError
from penstock.system.base import Progress, RawRecord, SystemWriter, WriterIdentity
from penstock.system.database import connection
from penstock.system.database.outputs import take_over_marks
from penstock.system.database.system import DatabaseSystem
from tests.support.databases.cut_proxy import CutProxy, Loss
from tests.support.databases.postgres import PASSWORD, Postgres, postgres
from tests.support.databases.shop import PARTITIONS, Sent, Shop, kill_at_every_step, messages, oracle, records, ssp
from tests.support.tools.fixtures import fixture_of

pytestmark = pytest.mark.slow


server = fixture_of(postgres, using=(), scope="module")


@pytest.fixture
def shop(server: Postgres) -> Shop:
    return Shop(server.url, PASSWORD)


proxy = fixture_of(lambda server: CutProxy(server.port))


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_are_those_of_the_messages(shop: Shop, seed: int) -> None:
    rng = random.Random(seed)
    sent = messages(rng, 300)
    writer, at = shop.system.writer(WriterIdentity("job-1", 1)), 0
    while at < len(sent):
        number = rng.randrange(1, 40)
        with writer.begin() as transaction:
            transaction.append(ssp(0), records(sent[at : at + number]))
        at += number
        assert shop.rows() == oracle(sent[:at])
    writer.close()


def test_a_writer_that_dies_at_any_step(shop: Shop) -> None:
    assert kill_at_every_step(shop) >= 8


def published(writer: SystemWriter, mark: Progress, own: list[RawRecord]) -> int:
    """Publish as containers do: after an error the marks are asked again. Returns the number of errors."""
    for errors in range(10):
        try:
            if writer.progress([ssp(0)]).get(ssp(0)) == mark:
                return errors
            with writer.begin() as transaction:
                transaction.append(ssp(0), own)
                transaction.mark(ssp(0), mark)
        except SystemAwayError:
            continue
        return errors
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("loss", ["request", "answer"])
def test_a_commit_whose_answer_is_lost(shop: Shop, server: Postgres, proxy: CutProxy, loss: Loss) -> None:
    """A trigger notes each row that is written, so a second time would be seen."""
    options = {**shop.options, "url": server.url.replace(str(server.port), str(proxy.port))}
    writer = DatabaseSystem.configured("db", options).writer(WriterIdentity("job-1", 1))
    shop.execute("CREATE TABLE IF NOT EXISTS counted (n INTEGER)")
    shop.execute("DELETE FROM counted")
    shop.execute(
        "CREATE OR REPLACE FUNCTION note() RETURNS trigger AS "
        "$$ BEGIN INSERT INTO counted VALUES (new.amount); RETURN new; END $$ LANGUAGE plpgsql"
    )
    shop.execute("CREATE TRIGGER noted BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION note()")
    writer.progress([ssp(0)])
    rng, sent, errors = random.Random(3), list[Sent](), 0
    for number in range(12):
        own: list[Sent] = [("c", number, {"amount": 1000 + number}), *messages(rng, 3)]
        text = rng.choice([b"COMMIT", b"INSERT INTO totals", b"UPDATE penstock_progress", b"FOR UPDATE"])
        proxy.cut_at(text, loss)
        errors += published(writer, Progress(number, 0), records(own))
        sent += own
        assert shop.rows() == oracle(sent)
    assert errors == proxy.cuts >= 10
    noted = shop.execute("SELECT n FROM counted WHERE n >= 1000 ORDER BY n")
    assert noted == [(1000 + number,) for number in range(12)]
    writer.close()


def test_a_server_that_crashes(shop: Shop, server: Postgres) -> None:
    writer = shop.system.writer(WriterIdentity("job-1", 1))
    published(writer, Progress(1, 0), records([("a", 1, {"amount": 1})]))
    server.kill()
    with pytest.raises(SystemAwayError, match=f"the postgresql database `postgres` at 127.0.0.1:{server.port}") as away:
        writer.append(ssp(0), records([("a", 1, {"amount": 2})]))
    assert PASSWORD not in str(away.value)
    server.start()
    assert published(writer, Progress(2, 0), records([("a", 1, {"amount": 3})])) == 0
    assert shop.rows() == [("a", 1, 3, "new")]
    writer.close()


def test_an_older_epoch_that_stopped_within_its_transaction(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends that transaction, because it holds the locks of the marks."""
    limits = connection._LIMITS.replace("'30s'", "'3s'").replace("'60s'", "'300ms'")
    monkeypatch.setattr(connection, "_LIMITS", limits)
    old = connection.Database(shop.system)
    shop.system.writer(WriterIdentity("job-1", 4)).progress([ssp(0)])
    with pytest.raises(SystemAwayError), old.transaction("the old one") as own:  # noqa: PT012
        take_over_marks(own, WriterIdentity("job-1", 4), [ssp(0)])
        shop.system.admin().fence("totals", WriterIdentity("job-1", 5))
        own.exec_driver_sql("DELETE FROM totals")
    with pytest.raises(FencedError, match="epoch 5 has taken over"):
        shop.publish(4, (0, Progress(1, 0), records([("a", 1, {})])))
    assert shop.rows() == []


def test_writers_of_the_same_rows_in_another_order(shop: Shop) -> None:
    """They lock each other, until PostgreSQL ends one of the transactions, which is then done again."""
    rows: list[Sent] = [("a", hour, {"amount": 0}) for hour in range(200)]
    failed: list[BaseException] = []

    def write(partition: int, round_: int) -> None:
        own = rows if partition % 2 else rows[::-1]
        try:
            sent = [(shop_, hour, {"amount": partition}) for shop_, hour, _ in own]
            shop.publish(1, (partition, Progress(round_, 0), records(sent)))
        except BaseException as error:
            failed.append(error)

    def deadlocks() -> int:
        shop.execute("SELECT pg_stat_clear_snapshot()")
        return int(shop.execute("SELECT sum(deadlocks) FROM pg_stat_database")[0][0])

    before = deadlocks()
    for round_ in range(40):
        threads = [threading.Thread(target=write, args=(partition, round_)) for partition in range(PARTITIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert len({row[2] for row in shop.rows()}) == 1, "one transaction after the other"
        progress = shop.system.admin().progress_of("job-1", map(ssp, range(PARTITIONS)))
        assert set(progress.values()) == {Progress(round_, 0)}
        if deadlocks() > before:
            break
    assert deadlocks() > before


def test_first_writers_at_once(shop: Shop) -> None:
    """They create the table of the marks, and add the marks of the same partitions."""
    failed: list[BaseException] = []

    def take(epoch: int) -> None:
        try:
            shop.system.admin().fence("totals", WriterIdentity("job-1", epoch))
        except FencedError:
            pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=take, args=(epoch,)) for epoch in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert set(shop.execute("SELECT epoch FROM penstock_progress")) == {(5,)}


TYPES = (
    "CREATE TABLE typed (id BIGINT PRIMARY KEY, flag BOOLEAN, small SMALLINT, real REAL, price NUMERIC(8,2), "
    "any_number NUMERIC, short VARCHAR(3), fixed CHAR(4), raw BYTEA, day DATE, at TIMESTAMPTZ, clock TIME, "
    "local TIMESTAMP, u UUID, doc JSONB, tags TEXT[], numbers INTEGER[], mood mood, ip INET, "
    "double BIGINT GENERATED ALWAYS AS (id * 2) STORED)"
)
VALUE = b"""{"id": 7, "flag": true, "small": -5, "real": 0.5, "price": 123456.78,
"any_number": "0.12345678901234567890123",
"short": "abc", "fixed": "ab", "raw": "AP8=", "day": "2026-01-31", "at": 1500, "clock": "12:30:00",
"local": "2026-01-31T12:00:00", "u": "00000000-0000-0000-0000-00000000000a", "doc": {"a": [1.50, null, "\\u00e9"]},
"tags": ["x", null], "numbers": [1, 2], "mood": "sad", "ip": "10.0.0.1"}"""


def test_the_types_of_columns(shop: Shop) -> None:
    shop.execute("DROP TABLE IF EXISTS typed")
    shop.execute("DROP TYPE IF EXISTS mood")
    shop.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    shop.execute(TYPES)
    limits = shop.system.admin().record_limits("typed")
    assert limits.refused(b"7", VALUE) is None
    writer = shop.system.writer(None)
    writer.append(ssp(0, "typed"), [(0, b"7", VALUE), (0, b"8", b"{}")])
    found = shop.execute(
        "SELECT flag, small, real, price::text, any_number::text, short, fixed, raw, day::text, at::text, clock::text, "
        "local::text, u::text, doc::text, tags, numbers, mood::text, ip::text, double FROM typed WHERE id = 7"
    )
    assert found == [
        (
            True, -5, 0.5, "123456.78", "0.12345678901234567890123", "abc", "ab  ", b"\x00\xff", "2026-01-31",
            "1970-01-01 00:00:01.5+00", "12:30:00", "2026-01-31 12:00:00", "00000000-0000-0000-0000-00000000000a",
            '{"a": [1.50, null, "\u00e9"]}', ["x", None], [1, 2], "sad", "10.0.0.1/32", 14,
        )
    ]  # fmt: skip
    cleared = [b'"%s": null' % name for name in (b"flag", b"price", b"doc", b"tags", b"mood", b"ip")]
    writer.append(ssp(0, "typed"), [(0, b"7", b"{%s}" % b", ".join(cleared)), (0, b"8", None)])
    empty = "flag IS NULL AND price IS NULL AND doc IS NULL AND tags IS NULL AND mood IS NULL AND ip IS NULL"
    assert shop.execute(f"SELECT count(*) FROM typed WHERE {empty} AND short = 'abc'") == [(1,)]
    for name, value, said in (
        (b"short", b'"abcd"', "takes 3"),
        (b"small", b"32768", "is not between"),
        (b"price", b"1.234", "more than 2 digits"),
        (b"mood", b'"angry"', "is not one of sad, ok"),
        (b"numbers", b'["x"]', "is not an integer"),
        (b"double", b"1", "computes"),
    ):
        assert said in (limits.refused(b"7", b'{"%s": %s}' % (name, value)) or "")
    with pytest.raises(SystemRefusedError, match=r"invalid input syntax for type inet.* id = 9"):
        writer.append(ssp(0, "typed"), [(0, b"8", b"{}"), (0, b"9", b'{"ip": "nowhere"}')])
    assert shop.execute("SELECT count(*) FROM typed") == [(1,)]
    writer.close()


def test_a_row_that_breaks_a_constraint_is_named_and_not_shown(shop: Shop) -> None:
    shop.execute("ALTER TABLE totals ADD CONSTRAINT small CHECK (amount < 50)")
    with pytest.raises(SystemRefusedError, match=r'"small"\. It is the row with the key shop = a, hour = 2') as caught:
        shop.publish(1, (0, Progress(1, 0), records([("a", 1, {"amount": 1}), ("a", 2, {"amount": 51, "note": "s3"})])))
    assert "s3" not in str(caught.value)
    assert shop.rows() == []


def test_a_table_of_a_schema(shop: Shop) -> None:
    shop.execute("CREATE SCHEMA IF NOT EXISTS sales")
    shop.execute("CREATE TABLE IF NOT EXISTS sales.totals (shop TEXT PRIMARY KEY, amount INTEGER)")
    shop.system.writer(None).append(ssp(0, "sales.totals"), [(0, b"a", b'{"amount": 5}')])
    assert shop.execute("SELECT * FROM sales.totals") == [("a", 5)]
    assert shop.rows() == []


def test_who_may_not_log_in_or_write(shop: Shop) -> None:
    def system(**options: str) -> DatabaseSystem:
        return DatabaseSystem.configured("db", {**shop.options, **options})

    shop.execute("DROP ROLE IF EXISTS reader")
    shop.execute("CREATE ROLE reader LOGIN PASSWORD 'r3ader'")
    for options, said in (
        ({"password": "wr0ng"}, "password authentication failed"),
        ({"url": shop.options["url"].removesuffix("postgres") + "nowhere"}, 'database "nowhere" does not exist'),
    ):
        with pytest.raises(SystemRefusedError, match=said) as caught:
            system(**options).admin().partition_count("totals")
        assert "wr0ng" not in str(caught.value)
        assert PASSWORD not in str(caught.value)
    poor = system(url=shop.options["url"].replace("postgres@", "reader@"), password="r3ader")
    assert poor.admin().partition_count("totals") == PARTITIONS
    with pytest.raises(SystemRefusedError, match=r"permission denied.*create it as in docs/databases\.md"):
        poor.admin().fence("totals", WriterIdentity("job-1", 1))
    with pytest.raises(SystemRefusedError, match="permission denied for table totals"):
        poor.writer(None).append(ssp(0), records([("a", 1, {})]))


def test_connections_do_not_grow(shop: Shop) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"  # and not those of other tests
    url = f"{shop.options['url']}?application_name=counted"
    system = DatabaseSystem.configured("db", {**shop.options, "url": url})
    writer, admin = system.writer(WriterIdentity("job-1", 1)), system.admin()
    for number in range(5):
        writer.append(ssp(0), records([("a", number, {})]))
        admin.partition_count("totals")
    assert shop.execute(count) == [(2,)]
    writer.close()
    admin.close()
    end = time.monotonic() + 10
    while shop.execute(count) != [(0,)] and time.monotonic() < end:
        time.sleep(0.02)  # a server notices later that a client has left
    assert shop.execute(count) == [(0,)]
