"""The examples with data of other programs: customers from a side input, and a model that is pushed."""

from __future__ import annotations

import random
from typing import Any

import pytest

import penstock as ps
from examples.jobs import anomaly_scores, enrichment
from examples.jobs.enrichment import Customer, Order
from penstock.testing import TestRunner


def test_each_order_has_the_newest_customer() -> None:
    chance = random.Random(19)
    runner = TestRunner(enrichment.app, partitions=3)
    known: dict[str, Customer | None] = {}
    expected: dict[str, dict[str, Any]] = {}
    for batch in range(8):
        changed = {f"c{chance.randrange(60)}": a_customer(chance) for _ in range(20)}
        known.update(changed)
        runner.side_input("local.customers", list(changed.items()))
        orders = [Order(f"o{batch}-{n}", f"c{chance.randrange(60)}", chance.randrange(999)) for n in range(60)]
        runner.input("local.web-orders", orders).run(batch_messages=25)
        for order in orders:
            name, country = one_of(known.get(order.customer))
            expected[order.id] = {"id": order.id, "cents": order.cents, "name": name, "country": country}
        if batch == 4:
            runner.commit().crash().restore()
    found = {message.value["id"]: message.value for message in runner.output("local.full-orders")}
    assert found == expected
    assert 50 < sum(row["name"] is None for row in found.values()) < 400


def test_readings_are_scored_by_the_model_of_their_batch() -> None:
    chance = random.Random(23)
    runner = TestRunner(anomaly_scores.app, partitions=3)
    expected: list[tuple[str, int, float]] = []
    for version in range(3):
        model = {f"s{n}": (chance.uniform(10, 30), chance.choice([0.0, 0.5, 2.0])) for n in range(20)}
        runner.push("model", [{"sensor": s, "mean": mean, "deviation": d} for s, (mean, d) in model.items()])
        readings = [(f"s{chance.randrange(25)}", version * 1_000 + n, chance.uniform(0, 40)) for n in range(300)]
        messages = [{"sensor": sensor, "at_ms": at_ms, "value": value} for sensor, at_ms, value in readings]
        runner.input("local.readings", messages).run(batch_messages=80)
        for sensor, at_ms, value in readings:
            mean, deviation = model.get(sensor, (0.0, 0.0))
            if deviation:
                expected.append((sensor, at_ms, (value - mean) / deviation))
    rows = [message.value for message in runner.output("local.scores")]
    assert sorted((row["sensor"], row["at_ms"], row["score"]) for row in rows) == sorted(expected)
    assert all(message.key == message.value["sensor"] for message in runner.output("local.scores"))
    unusual = [(m.value["sensor"], m.value["at_ms"], m.value["score"]) for m in runner.output("local.anomalies")]
    assert sorted(unusual) == sorted(each for each in expected if abs(each[2]) > 4)
    assert 50 < len(unusual) < len(expected) < 900


@pytest.mark.parametrize(("rows", "before", "fits"), [(5, None, True), (50, 100, True), (49, 100, False)])
def test_a_model_that_lost_most_of_its_sensors_is_refused(rows: int, before: int | None, fits: bool) -> None:
    version = ps.TableCandidate("model", "models/sensors", "v2", rows, before)
    assert anomaly_scores.not_half_empty(version) is fits


def a_customer(chance: random.Random) -> Customer | None:
    """A customer, or None for one who was deleted."""
    return Customer(f"name {chance.random()}", chance.choice(["FR", "US"])) if chance.random() < 0.8 else None


def one_of(customer: Customer | None) -> tuple[str | None, str | None]:
    """The name and the country."""
    return (customer.name, customer.country) if customer else (None, None)
