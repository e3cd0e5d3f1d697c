"""A job on Spark keeps a table of PostgreSQL as its state says, while its driver is killed."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import RawRecord
from penstock.system.local import LocalSystem
from tests.support.databases.postgres import PASSWORD, postgres
from tests.support.databases.shop import Shop
from tests.support.processes.killed_runs import KilledRun

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PARTITIONS = 2
SHOPS = [f"shop-{number}" for number in range(9)]

APP = """
import penstock as ps


class Totals(ps.StreamTask):
    def init(self, context):
        self.totals = context.store("totals")

    def process(self, envelope, collector, coordinator):
        seen, amount = self.totals.get(envelope.key) or (0, 0)
        closed = envelope.value["amount"] is None
        seen, amount = seen + 1, 0 if closed else amount + envelope.value["amount"]
        self.totals.put(envelope.key, [seen, amount])
        collector.emit(key=envelope.key, value=None if closed else {"seen": seen, "amount": amount})


app = ps.StreamApplication("upserts")
app.store("totals")
orders = app.input("local.orders").partition_by(lambda order: order["shop"], id="by-shop")
orders.process(Totals, stores=["totals"], id="totals").send_to(app.output("db.shops"))
"""

_NOTE = "$$ BEGIN INSERT INTO noted VALUES (new.shop, new.seen); RETURN new; END $$ LANGUAGE plpgsql"
TABLES = (
    "CREATE TABLE shops (shop TEXT PRIMARY KEY, seen BIGINT NOT NULL, amount BIGINT NOT NULL)",
    "CREATE TABLE noted (shop TEXT, seen BIGINT)",
    f"CREATE FUNCTION note() RETURNS trigger AS {_NOTE}",
    "CREATE TRIGGER noted BEFORE INSERT ON shops FOR EACH ROW EXECUTE FUNCTION note()",
)


class Orders:
    """The orders of shops, and the rows that they must come to. An order without an amount closes the shop."""

    def __init__(self, system: LocalSystem) -> None:
        self._writer = system.writer(None)
        self._rng = random.Random(5)
        self._seen = dict.fromkeys(SHOPS, 0)
        self.rows: dict[str, tuple[int, int]] = {}

    def sell(self, count: int) -> None:
        parts: list[list[RawRecord]] = [[] for _ in range(PARTITIONS)]
        for _ in range(count):
            number = self._rng.randrange(len(SHOPS))
            shop, amount = SHOPS[number], self._rng.choice([None, *range(1, 9)])
            self._seen[shop] += 1
            if amount is None:
                self.rows.pop(shop, None)
            else:
                self.rows[shop] = self._seen[shop], self.rows.get(shop, (0, 0))[1] + amount
            record = (0, None, orjson.dumps({"shop": shop, "amount": amount}))
            parts[number % PARTITIONS].append(record)  # the orders of a shop keep their order
        for partition, own in enumerate(parts):
            self._writer.append(SystemStreamPartition("local", "orders", partition), own)


def test_the_table_is_what_the_orders_come_to(tmp_path: Path) -> None:
    with postgres() as server:
        shop = Shop(server.url, PASSWORD)
        for text in TABLES:
            shop.execute(text)
        (tmp_path / "password").write_text(PASSWORD, encoding="utf-8")
        local = LocalSystem.configured("local", {"path": str(tmp_path / "streams")})
        local.admin().create_stream("orders", PARTITIONS)
        orders = Orders(local)
        settings = {
            "systems.local.path": str(tmp_path / "streams"),
            "systems.db.samza.factory": "database",
            "systems.db.url": server.url,
            "systems.db.password": f"${{file:{tmp_path}/password}}",
            "streams.db.shops.output.guarantee": "exactly-once",
            "task.commit.ms": "200",
        }
        job = KilledRun(tmp_path, APP, settings)

        def kill(every_s: float) -> str:
            before = len(shop.execute("SELECT * FROM noted"))
            return job.kill_once(
                lambda: len(shop.execute("SELECT * FROM noted")) > before, lambda: orders.sell(20), every_s
            )

        orders.sell(500)
        printed = ""
        for every_s in (0.05, 0.1):
            printed += kill(every_s)
            orders.sell(200)
        assert PASSWORD not in printed + job.run_to_the_end()
        found = shop.execute("SELECT shop, seen, amount FROM shops")
        assert {name: (seen, amount) for name, seen, amount in found} == orders.rows
        assert shop.execute("SELECT shop, seen FROM noted GROUP BY shop, seen HAVING count(*) > 1") == []
