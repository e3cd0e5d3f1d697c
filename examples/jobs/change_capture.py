"""Follows the changes of a table of a database, and adds to each order the product as it was at the time of the order.

The stream `product-changes` has the inserts, updates and deletes of the table, in the form of Debezium. Publish some to
it, and orders to the stream `product-orders`. Run the job, and read the stream `priced-orders`:

    penstock run examples/jobs/change_capture.py:app
"""

from dataclasses import dataclass
from typing import Any

import penstock as ps


@dataclass(frozen=True)
class Product:
    id: str
    name: str
    cents: int


@dataclass(frozen=True)
class Source:
    ts_ms: int


@dataclass(frozen=True)
class Change:
    source: Source
    before: Product | None = None
    after: Product | None = None


@dataclass(frozen=True)
class Order:
    id: str
    product: str
    pieces: int
    at_ms: int


def product_of(change: Change) -> str:
    """The id of the product that was inserted, updated or deleted."""
    row = change.after or change.before
    if row is None:
        raise ValueError("a change has a row before it, after it, or both")
    return row.id


def priced(order: Order, product: Product | None) -> dict[str, Any]:
    """The order with the product's name and its price at that time, or None if there was no such product."""
    return {"id": order.id, "name": product and product.name, "cents": product and product.cents * order.pieces}


app = ps.StreamApplication("change-capture")
bound = ps.BoundedOutOfOrderness("1min")
products = app.table("products", value=ps.Struct(Product), history_ms="1h")
changes = app.input(
    "local.product-changes", value=ps.Struct(Change), timestamp=lambda change: change.source.ts_ms, watermark=bound
)
orders = app.input("local.product-orders", value=ps.Struct(Order), timestamp=lambda order: order.at_ms, watermark=bound)

changes.partition_by(product_of, id="changes-by-product").map(lambda change: change.after).send_to(products)
(
    orders.partition_by(lambda order: order.product, id="orders-by-product")
    .join_table(products, priced, kind="left", as_of=True, late_to=app.output("local.late-orders"), id="priced")
    .send_to(app.output("local.priced-orders"))
)
