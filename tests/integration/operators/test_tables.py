"""Tables, temporal joins and state of the key on Spark: two runs with a restore in between, and a plain program."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.apps import tables_app
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
PARTITIONS = {"names": 1, "orders": 2, "rates": 2, "named": 2, "histories": 2, "priced": 2}
CUSTOMERS = [f"w{n}" for n in range(5)]
CURRENCIES = ["EUR", "USD", "CHF"]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> SparkHome:
    return SparkHome(tmp_path, spark, PARTITIONS, {"job.batch.max.messages": 100, "job.batch.target.ms": 0})


@pytest.mark.slow
def test_tables_over_two_runs(shop: SparkHome) -> None:
    rng = random.Random(3)
    for who in CUSTOMERS[1:]:  # one has no name
        shop.append("names", 0, (who.encode(), f"name of {who}".encode()))
    shop.run(tables_app.shop(), close=False)
    orders: list[dict[str, Any]] = []
    rates: list[dict[str, Any]] = []
    for half in (0, 1):
        for n in range(half * 200, half * 200 + 200):
            at = n * 10 + rng.randrange(50)
            who = rng.choice(CUSTOMERS)
            orders.append({"n": n, "who": who, "currency": rng.choice(CURRENCIES), "at": at})
            shop.append("orders", CUSTOMERS.index(who) % 2, (None, json.dumps(orders[-1]).encode()))
            if n % 5 == 0:
                currency = CURRENCIES[n // 5 % 3]
                rates.append({"currency": currency, "rate": rng.choice([None, n, n]), "at": n * 10 + rng.randrange(50)})
                shop.append("rates", n // 5 % 2, (None, json.dumps(rates[-1]).encode()))
        shop.run(tables_app.shop(), close=bool(half))
    assert {each["n"]: each["name"] for _, each, _ in shop.read("named")} == {
        order["n"]: f"name of {order['who']}" for order in orders if order["who"] != "w0"
    }
    priced = {each["n"]: (timestamp, each["rate"]) for _, each, timestamp in shop.read("priced")}
    assert priced == {order["n"]: (order["at"], rate_at(rates, order)) for order in orders}
    assert {each["n"]: each["shown"] for _, each, _ in shop.read("histories")} == histories(orders)


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


def test_streams_that_are_partitioned_differently_are_refused(shop: SparkHome) -> None:
    app = ps.StreamApplication("refused")
    table = app.table("names", value=ps.String())
    app.input("local.names", value=ps.String()).send_to(table, id="to-names")
    app.input("local.orders").join_table(table, lambda order, _: order, id="named")
    with pytest.raises(ps.ConfigError, match=r"`to-names` writes input `local.names` \(1 partition\); `named` joins"):
        shop.start(app)
