"""Orders priced with the rate of their time, customers' names from a table, and what each customer ordered."""

from __future__ import annotations

from typing import Any

import penstock as ps


class Orders(ps.StreamTask):
    """Keeps the orders of a customer in a list, the number of each kind in a map, and the last one in a value."""

    def init(self, context: ps.TaskContext) -> None:
        self.names = context.store("names")
        self.orders = context.list_state("orders")
        self.kinds = context.map_state("kinds")
        self.last = context.value_state("last")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        number, currency = envelope.value["n"], envelope.value["currency"]
        self.orders.append(number)
        self.kinds.put(currency, self.kinds.get(currency, 0) + 1)
        self.last.update(number)
        shown = [list(self.orders.get()), dict(self.kinds.items()), self.last.get(), self.names.get(envelope.key)]
        collector.emit(key=envelope.key, value={"n": number, "shown": shown})


def shop() -> ps.StreamApplication:
    """Orders `{"n", "who", "currency", "at"}`, rates `{"currency", "rate", "at"}`, and names by customer."""
    app = ps.StreamApplication("shop")
    names = app.table("names", value=ps.String())
    rates = app.table("rates", value=ps.Long(), history_ms=0)
    app.list_state("orders", value=ps.Long())
    app.map_state("kinds", value=ps.Long())
    app.value_state("last", value=ps.Long())

    def at(value: Any) -> int:
        return int(value["at"])

    orders = app.input("local.orders", timestamp=at, watermark=ps.BoundedOutOfOrderness(50), id="orders-in")
    of_customer = orders.partition_by(lambda order: order["who"], id="by-customer")
    named = of_customer.join_table(names, lambda order, name: {"n": order["n"], "name": name}, id="named")
    named.send_to(app.output("local.named"))
    histories = of_customer.process(Orders, stores=["orders", "kinds", "last", "names"], id="history")
    histories.send_to(app.output("local.histories"))
    priced = orders.partition_by(lambda order: order["currency"], id="by-currency").join_table(
        rates, lambda order, rate: {"n": order["n"], "rate": rate}, kind="left", as_of=True, id="priced"
    )
    priced.send_to(app.output("local.priced"))
    app.input("local.names", value=ps.String()).partition_by(
        lambda message: message.key, envelope=True, id="names-by-customer"
    ).send_to(names, id="to-names")
    changes = app.input("local.rates", timestamp=at, watermark=ps.BoundedOutOfOrderness(50), id="rates-in")
    by_currency = changes.partition_by(lambda rate: rate["currency"], id="rates-by-currency")
    by_currency.map(lambda rate: rate["rate"]).send_to(rates, id="to-rates")
    return app
