"""Joins each order with its payments, and reports orders that nobody pays and payments without an order.

A payment comes up to an hour after its order, or up to five minutes before it, because clocks differ. Publish some to
the streams `orders` and `payments`, run the job, and read the stream `settled`:

    penstock run examples/jobs/order_payments.py:app
"""

from dataclasses import dataclass
from typing import Any

import penstock as ps


@dataclass(frozen=True)
class Order:
    id: str
    cents: int
    at_ms: int


@dataclass(frozen=True)
class Payment:
    order: str
    cents: int
    at_ms: int


def settled(order: Order | None, payment: Payment | None) -> dict[str, Any]:
    """An order and one of its payments, or what has no partner."""
    if order is None or payment is None:
        return {
            "state": "no order" if order is None else "unpaid",
            "ordered": order and order.cents,
            "paid": payment and payment.cents,
        }
    state = "paid" if payment.cents == order.cents else "wrong amount"
    return {"state": state, "ordered": order.cents, "paid": payment.cents}


app = ps.StreamApplication("order-payments")
bound = ps.BoundedOutOfOrderness("1min")
orders = app.input("local.orders", value=ps.Struct(Order), timestamp=lambda order: order.at_ms, watermark=bound)
payments = app.input("local.payments", value=ps.Struct(Payment), timestamp=lambda paid: paid.at_ms, watermark=bound)
(
    orders.partition_by(lambda order: order.id, id="by-id")
    .join(
        payments.partition_by(lambda payment: payment.order, id="by-order"),
        settled,
        within_ms=("5min", "1h"),
        kind="outer",
        late_to=app.output("local.late"),
        id="settled",
    )
    .send_to(app.output("local.settled"))
)
