"""From Avro topics with a registry through a join and a window into tables, on the oldest Spark and the newest."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import penstock as ps
from penstock.schemas.client import open_registry
from penstock.schemas.registry import Schema
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.processes.apicurio import apicurio
from tests.support.processes.killed_runs import KilledRun
from tests.support.processes.other_pysparks import VERSIONS, pyspark_of
from tests.support.streams.kafka import new_topic
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import ROOT
from tests.support.world.lake_world import Kind, lake_of, options_of, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.kafka]
HOUR = 3_600_000
PARTITIONS = 2
TENANTS = ("north", "south", "west")
Sent = tuple[str, str, int, int]
"""The order, its tenant, its amount, and the time of its payment."""


def record(name: str, **fields: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


ORDER = record("Order", order="string", amount="long", at="long")
PAYMENT = record("Payment", order="string", at="long")
PAID = record("Paid", order="string", amount="long", at="long")

APP = f"""
import os

import penstock as ps

HOUR = 3_600_000
registry = ps.SchemaRegistry()
app = ps.StreamApplication("doors")
orders, payments, paid = (os.environ[name] for name in ("ORDERS", "PAYMENTS", "PAID"))
at = lambda message: message["at"]
order = app.input(f"kafka.{{orders}}", value=ps.Avro({ORDER!r}, registry=registry), timestamp=at)
payment = app.input(f"kafka.{{payments}}", value=ps.Avro({PAYMENT!r}, registry=registry), timestamp=at)
joined = order.join(
    payment,
    lambda one, other: {{"order": one["order"], "amount": one["amount"], "at": other["at"]}},
    within_ms="2h",
    id="join",
)
joined.send_to(app.output(f"kafka.{{paid}}", value=ps.Avro({PAID!r}, registry=registry)))
by_tenant = joined.partition_by(lambda message: message.header("tenant").decode(), envelope=True, id="by-tenant")
hours = ps.Windows.tumbling("1h", aggregates={{"amount": ps.Sum(lambda each: each["amount"]), "orders": ps.Count()}})
totals = by_tenant.window(hours, id="hours")
totals.map(
    lambda pane: {{"tenant": pane.key, "hour": pane.window.start_ms // HOUR, **pane.message}}
).send_to(app.output("lake.totals"))
"""


def headers_of(order: str, tenant: str) -> tuple[tuple[str, bytes], ...]:
    return ("tenant", tenant.encode()), ("trace", f"trace-{order}".encode())


class Shop:
    """The topics, and the messages that were sent there."""

    def __init__(self, broker: KafkaBroker, url: str) -> None:
        self.broker = broker
        self.orders, self.payments, self.paid = (
            new_topic(broker, PARTITIONS, {"retention.ms": "-1"}) for _ in range(3)
        )
        registry = open_registry({"url": url})
        self._ids = {
            topic: registry.register(f"{topic}-value", Schema("AVRO", json.dumps(schema)))
            for topic, schema in ((self.orders, ORDER), (self.payments, PAYMENT))
        }
        self._serdes = {self.orders: ps.Avro(ORDER), self.payments: ps.Avro(PAYMENT)}
        self._producer = Producer(broker.client_options())
        self.sent: list[Sent] = []

    def sell(self, first_hour: int, last_hour: int, count: int) -> None:
        """Orders and their payments in these hours, in the order of their times, and a last one in each partition."""
        rng = random.Random(first_hour)
        times = sorted(rng.randrange(first_hour * HOUR, last_hour * HOUR) for _ in range(count))
        for at in times:
            number = len(self.sent)
            order, tenant, amount = f"o{number}", TENANTS[number % 3], rng.randrange(100)
            self.sent.append((order, tenant, amount, at))
            self._put(self.orders, order, {"amount": amount, "at": at - at % 1000}, tenant)
            self._put(self.payments, order, {"at": at}, tenant)
        for partition in range(PARTITIONS):
            for topic in (self.orders, self.payments):
                last = f"end-{first_hour}-{partition}-{topic}"  # it has no partner in the other topic
                self._put(topic, last, {"amount": 0, "at": last_hour * HOUR}, "-", partition)
        self._producer.flush()

    def _put(self, topic: str, order: str, fields: dict[str, Any], tenant: str, partition: int = -1) -> None:
        known = {each["name"] for each in (ORDER if topic == self.orders else PAYMENT)["fields"]}
        value = {"order": order, **{name: each for name, each in fields.items() if name in known}}
        data = b"\x00" + self._ids[topic].to_bytes(4, "big") + self._serdes[topic].to_bytes(value)
        self._producer.produce(topic, data, order.encode(), partition, headers=[*headers_of(order, tenant)])
        self._producer.poll(0)

    def totals(self, before_hour: int) -> list[dict[str, Any]]:
        """The oracle: a row for each tenant and hour."""
        amounts, orders = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for _, tenant, amount, at in self.sent:
            amounts[tenant, at // HOUR] += amount
            orders[tenant, at // HOUR] += 1
        return [
            {"tenant": tenant, "hour": hour, "amount": amounts[tenant, hour], "orders": count}
            for (tenant, hour), count in sorted(orders.items())
            if hour < before_hour
        ]

    def read_paid(self) -> list[tuple[str, Any]]:
        """Each message of the output: its order and its headers, as a `read_committed` reader sees them."""
        options = {"group.id": self.paid, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self.broker.client_options(), **options})
        consumer.subscribe([self.paid])
        found, end = list[tuple[str, Any]](), time.monotonic() + 60
        try:
            while len(found) < len(self.sent) and time.monotonic() < end:
                for message in consumer.consume(500, 1.0):
                    value = ps.Avro(PAID).from_bytes((message.value() or b"")[5:])
                    found.append((value["order"], tuple(message.headers() or ())))
            found += [("too many", ()) for _ in consumer.consume(1, 2.0)]
        finally:
            consumer.close()
        return sorted(found)


url = fixture_of(apicurio, using=(), scope="module")


@pytest.mark.parametrize(("version", "kind"), [(min(VERSIONS), "delta"), (None, "delta"), (None, "iceberg")])
def test_every_row_once(version: str | None, kind: Kind, kafka_broker: KafkaBroker, url: str, tmp_path: Path) -> None:
    shop = Shop(kafka_broker, url)
    paths = [str(ROOT)] if version is None else [str(pyspark_of(version)), str(ROOT)]
    names = {"ORDERS": shop.orders, "PAYMENTS": shop.payments, "PAID": shop.paid}
    schema = "tenant STRING, hour BIGINT, amount BIGINT, orders BIGINT"
    lake = lake_of(kind, tmp_path / "lake", schema=schema)
    settings = {
        **kafka_broker.system_config(),
        "schema.registry.url": url,
        "systems.lake.samza.factory": kind,
        **{f"systems.lake.{key}": text for key, text in options_of(kind, tmp_path / "lake", schema=schema).items()},
        "streams.lake.totals.output.guarantee": "exactly-once",
        f"streams.kafka.{shop.paid}.output.guarantee": "exactly-once",
    }
    job = KilledRun(tmp_path, APP, settings, {**names, "PYTHONPATH": os.pathsep.join(paths)})

    def rows() -> list[dict[str, Any]]:
        found = rows_of(lake, "totals") if "totals" in lake.admin().streams() else []
        return sorted(found, key=lambda row: (row["tenant"], row["hour"]))

    shop.sell(0, 3, 600)
    job.kill_once(rows)
    shop.sell(3, 6, 600)
    job.run_to_the_end()
    assert rows() == shop.totals(before_hour=6)
    assert shop.read_paid() == sorted((order, headers_of(order, tenant)) for order, tenant, *_ in shop.sent)
