"""The examples that join orders by event time: with payments, and with the changes of a table."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from examples.jobs import change_capture, order_payments
from examples.jobs.change_capture import Change, Product, Source
from examples.jobs.order_payments import Order, Payment
from penstock.testing import TestRunner

T = TypeVar("T")
Row = tuple[str, str, int | None, int | None, int]
"""Key, state, ordered, paid, and timestamp of a result."""

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def test_orders_meet_their_payments_and_the_others_are_reported() -> None:
    chance = random.Random(13)
    orders = [Order(f"o{n}", chance.randrange(100, 999), chance.randrange(8 * HOUR_MS)) for n in range(300)]
    payments = [Payment(f"x{n}", 100, chance.randrange(8 * HOUR_MS)) for n in range(20)]
    for order in orders:
        for _ in range(chance.choice([0, 1, 1, 1, 2])):
            cents = chance.choice([order.cents, order.cents, 50])
            payments.append(Payment(order.id, cents, order.at_ms + chance.randrange(-6 * MINUTE_MS, 66 * MINUTE_MS)))
    runner = TestRunner(order_payments.app, partitions=3)
    in_steps(
        runner,
        "local.orders",
        disordered(orders, lambda order: order.at_ms, chance),
        "local.payments",
        disordered(payments, lambda payment: payment.at_ms, chance),
    )
    results = runner.output("local.settled")
    found = [(m.key, m.value["state"], m.value["ordered"], m.value["paid"], m.timestamp) for m in results]
    assert sorted(found, key=repr) == sorted(settlements(orders, payments), key=repr)
    assert {state for _, state, *_ in found} == {"paid", "wrong amount", "unpaid", "no order"}
    assert runner.output("local.late") == []


def test_a_payment_that_comes_after_its_time_is_late() -> None:
    runner = TestRunner(order_payments.app).input("local.orders", [Order("o1", 500, 0)]).advance_watermark(2 * HOUR_MS)
    runner.input("local.payments", [Payment("o1", 500, MINUTE_MS)]).run()
    assert [m.value["state"] for m in runner.output("local.settled")] == ["unpaid"]
    assert [m.value for m in runner.output("local.late")] == [{"order": "o1", "cents": 500, "at_ms": MINUTE_MS}]


def test_orders_have_the_price_of_their_time() -> None:
    chance = random.Random(17)
    changes = product_changes(chance)
    orders = [
        change_capture.Order(f"o{n}", f"p{chance.randrange(12)}", chance.randrange(1, 9), chance.randrange(8 * HOUR_MS))
        for n in range(400)
    ]
    runner = TestRunner(change_capture.app, partitions=3)
    # A capture writes the changes of a row to one partition, in their order.
    for change in changes:
        runner.input("local.product-changes", [change], partition=int(change_capture.product_of(change)[1:]) % 3)
    in_steps(runner, "local.product-orders", disordered(orders, lambda order: order.at_ms, chance))
    found = {m.value["id"]: (m.value["name"], m.value["cents"]) for m in runner.output("local.priced-orders")}
    assert found == {order.id: price(order, changes) for order in orders}
    assert 20 < list(found.values()).count((None, None)) < 380
    assert runner.output("local.late-orders") == []


def in_steps(runner: TestRunner, *inputs: Any) -> None:
    """Read each input in two parts, in small batches, with a crash between them, to the end."""
    pairs = list(zip(inputs[::2], inputs[1::2], strict=True))
    for stream, messages in pairs:
        runner.input(stream, messages[: len(messages) // 2])
    runner.run(batch_messages=60).commit().crash().restore()
    for stream, messages in pairs:
        runner.input(stream, messages[len(messages) // 2 :])
    runner.run(batch_messages=60).end_inputs()


def disordered(messages: list[T], time: Callable[[T], int], chance: random.Random) -> list[T]:
    """The messages, each up to a minute behind later ones."""
    return sorted(messages, key=lambda message: time(message) + chance.randrange(MINUTE_MS))


def settlements(orders: list[Order], payments: list[Payment]) -> list[Row]:
    """Every pair within the bounds, and what is in none, at the last time of a partner."""
    pairs = [
        (order, payment)
        for order in orders
        for payment in payments
        if payment.order == order.id and -5 * MINUTE_MS <= payment.at_ms - order.at_ms <= HOUR_MS
    ]
    found: list[Row] = [
        (o.id, "paid" if o.cents == p.cents else "wrong amount", o.cents, p.cents, max(o.at_ms, p.at_ms))
        for o, p in pairs
    ]
    paid, used = {order.id for order, _ in pairs}, {id(payment) for _, payment in pairs}
    found += [(o.id, "unpaid", o.cents, None, o.at_ms + HOUR_MS) for o in orders if o.id not in paid]
    found += [(p.order, "no order", None, p.cents, p.at_ms + 5 * MINUTE_MS) for p in payments if id(p) not in used]
    return found


def product_changes(chance: random.Random) -> list[Change]:
    """Inserts, updates and deletes of ten products over eight hours, by time."""
    rows: dict[str, Product] = {}
    changes = []
    for at_ms in sorted(chance.sample(range(8 * HOUR_MS), 300)):
        name = f"p{chance.randrange(10)}"
        before = rows.pop(name, None)
        after = None if before and chance.random() < 0.3 else Product(name, f"name of {name}", chance.randrange(1, 900))
        if after is not None:
            rows[name] = after
        changes.append(Change(Source(at_ms), before, after))
    return changes


def price(order: change_capture.Order, changes: list[Change]) -> tuple[str | None, int | None]:
    """The name and price by the last change at or before the order."""
    earlier = [
        change.after
        for change in changes
        if order.product in {row.id for row in (change.before, change.after) if row}
        and change.source.ts_ms <= order.at_ms
    ]
    row = earlier[-1] if earlier else None
    return (row.name, row.cents * order.pieces) if row else (None, None)
