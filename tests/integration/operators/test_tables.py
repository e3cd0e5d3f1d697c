"""Tables, temporal joins and state of the key on Spark: two runs with a restore in between, and a plain program."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.apps import tables_app
from tests.support.jobs.home import DEADLINE_S

pytestmark = pytest.mark.spark
PARTITIONS = {"names": 1, "orders": 2, "rates": 2, "named": 2, "histories": 2, "priced": 2}
CUSTOMERS = [f"w{n}" for n in range(5)]
CURRENCIES = ["EUR", "USD", "CHF"]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(tables_app)


class Shop:
    """The streams and the job root of one test."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 20,
            "job.batch.max.messages": 100,
            "job.batch.target.ms": 0,
        }
        self.system = LocalSystem("local", str(folder / "streams"))
        for stream, partitions in PARTITIONS.items():
            self.system.admin().create_stream(stream, partitions)
        self.writer = self.system.writer(None)

    def publish(self, stream: str, partition: int, key: bytes | None, value: bytes) -> None:
        self.writer.append(SystemStreamPartition("local", stream, partition), [(5, key, value)])

    def read(self, stream: str) -> list[Any]:
        found = []
        for partition, ends in self.system.admin().offsets(stream).items():
            ssp = SystemStreamPartition("local", stream, partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                found += [(timestamp, json.loads(value or b"")) for _, timestamp, _, value, *_ in chunk]
        return found

    def run(self, spark: SparkSession, *, close: bool) -> None:
        job = tables_app.shop().run(self.config, spark=spark, until="latest", close=close)
        assert job.await_termination(DEADLINE_S)


@pytest.mark.slow
def test_tables_over_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    shop, rng = Shop(tmp_path), random.Random(3)
    for who in CUSTOMERS[1:]:  # one has no name
        shop.publish("names", 0, who.encode(), f"name of {who}".encode())
    shop.run(spark, close=False)
    orders: list[dict[str, Any]] = []
    rates: list[dict[str, Any]] = []
    for half in (0, 1):
        for n in range(half * 200, half * 200 + 200):
            at = n * 10 + rng.randrange(50)
            who = rng.choice(CUSTOMERS)
            orders.append({"n": n, "who": who, "currency": rng.choice(CURRENCIES), "at": at})
            shop.publish("orders", CUSTOMERS.index(who) % 2, None, json.dumps(orders[-1]).encode())
            if n % 5 == 0:
                currency = CURRENCIES[n // 5 % 3]
                rates.append({"currency": currency, "rate": rng.choice([None, n, n]), "at": n * 10 + rng.randrange(50)})
                shop.publish("rates", n // 5 % 2, None, json.dumps(rates[-1]).encode())
        shop.run(spark, close=bool(half))
    assert dict(named(shop)) == {order["n"]: f"name of {order['who']}" for order in orders if order["who"] != "w0"}
    priced = {each["n"]: (timestamp, each["rate"]) for timestamp, each in shop.read("priced")}
    assert priced == {order["n"]: (order["at"], rate_at(rates, order)) for order in orders}
    assert {each["n"]: each["shown"] for _, each in shop.read("histories")} == histories(orders)


def named(shop: Shop) -> list[tuple[int, str]]:
    return [(each["n"], each["name"]) for _, each in shop.read("named")]


def rate_at(rates: list[dict[str, Any]], order: dict[str, Any]) -> int | None:
    """No two rates of a currency have the same time."""
    before = [rate for rate in rates if rate["currency"] == order["currency"] and rate["at"] <= order["at"]]
    rate: int | None = max(before, key=lambda each: int(each["at"]))["rate"] if before else None
    return rate


def histories(orders: list[dict[str, Any]]) -> dict[int, list[Any]]:
    found = {}
    for number, order in enumerate(orders):
        own = [each for each in orders[: number + 1] if each["who"] == order["who"]]
        name = None if order["who"] == "w0" else f"name of {order['who']}"
        kinds = dict(sorted(Counter(each["currency"] for each in own).items()))
        found[order["n"]] = [[each["n"] for each in own], kinds, order["n"], name]
    return found


def test_streams_that_are_partitioned_differently_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    app = ps.StreamApplication("refused")
    table = app.table("names", value=ps.String())
    app.input("local.names", value=ps.String()).send_to(table, id="to-names")
    app.input("local.orders").join_table(table, lambda order, _: order, id="named")
    with pytest.raises(ps.ConfigError, match=r"`to-names` writes input `local.names` \(1 partition\); `named` joins"):
        app.run({**shop.config, "job.root": str(tmp_path / "other")}, spark=spark)
