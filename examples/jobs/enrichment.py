"""Adds the customer to each order.

Another program writes the customers to the stream `customers`, with their ids as keys, and again when they change. The
job keeps the newest ones in a table. Publish some, and orders to the stream `web-orders`. Run the job, and read the
stream `full-orders`:

    penstock run examples/jobs/enrichment.py:app
"""

from dataclasses import dataclass
from typing import Any

import penstock as ps


@dataclass(frozen=True)
class Customer:
    name: str
    country: str


@dataclass(frozen=True)
class Order:
    id: str
    customer: str
    cents: int


def with_customer(order: Order, customer: Customer | None) -> dict[str, Any]:
    """The order with the name and country of its customer, which are None if the customer is unknown."""
    return {
        "id": order.id,
        "cents": order.cents,
        "name": customer and customer.name,
        "country": customer and customer.country,
    }


app = ps.StreamApplication("enrichment")
customers = app.table("customers", value=ps.Struct(Customer), side_inputs=["local.customers"])
(
    app.input("local.web-orders", value=ps.Struct(Order))
    .partition_by(lambda order: order.customer, id="by-customer")
    .join_table(customers, with_customer, kind="left", id="with-customer")
    .send_to(app.output("local.full-orders"))
)
