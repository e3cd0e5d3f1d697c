"""A job on Spark keeps a table of PostgreSQL as its state says, while its driver is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import RawRecord
from penstock.system.local import LocalSystem
from tests.support.databases.postgres import PASSWORD, postgres
from tests.support.databases.shop import Shop
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PARTITIONS = 2
SHOPS = [f"shop-{number}" for number in range(9)]
_WAIT_S = 240.0

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
        (tmp_path / "upserts_job.py").write_text(APP, encoding="utf-8")
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
            "spark.master": "local[2]",
            "task.commit.ms": "200",
        }
        run = [
            "run",
            "upserts_job.py:app",
            *(part for key, text in settings.items() for part in ("-c", f"{key}={text}")),
        ]
        command = [sys.executable, "-m", "penstock.cli", *run]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        orders.sell(500)
        for kill in range(2):
            before = len(shop.execute("SELECT * FROM noted"))
            with (tmp_path / "driver.log").open("w") as log:
                driver = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
                try:
                    end = time.monotonic() + _WAIT_S
                    while len(shop.execute("SELECT * FROM noted")) == before:
                        waits = driver.poll() is None and time.monotonic() < end
                        assert waits, (tmp_path / "driver.log").read_text()
                        orders.sell(20)
                        time.sleep(0.05 * (1 + kill))
                finally:
                    driver.send_signal(signal.SIGKILL)
                    driver.wait()
            orders.sell(200)
        done = subprocess.run(
            [*command, "--until", "latest"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=_WAIT_S, check=False,
        )  # fmt: skip
        assert not done.returncode, done.stdout + done.stderr
        assert PASSWORD not in done.stdout + done.stderr + (tmp_path / "driver.log").read_text()
        found = shop.execute("SELECT shop, seen, amount FROM shops")
        assert {name: (seen, amount) for name, seen, amount in found} == orders.rows
        assert shop.execute("SELECT shop, seen FROM noted GROUP BY shop, seen HAVING count(*) > 1") == []
