"""Raises an alarm for each large payment that the owner of the card does not confirm within ten minutes.

Payments and confirmations come in one stream, up to a minute out of order. Publish some to the stream `card-events`,
run the job, and read the stream `alarms`:

    penstock run examples/jobs/fraud_rule.py:app
"""

from dataclasses import dataclass
from typing import Literal

import penstock as ps

LARGE_CENTS = 50_000
WAIT_MS = 600_000


@dataclass(frozen=True)
class Event:
    payment: str
    kind: Literal["payment", "confirmation"]
    at_ms: int
    card: str = ""
    cents: int = 0


class Unconfirmed(ps.StreamTask):
    """Waits for the confirmation of each payment, which may be read before the payment."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.payment: ps.ValueState[Event] = context.value_state("payment")
        self.confirmed_ms: ps.ValueState[int] = context.value_state("confirmed-ms")

    def process(
        self,
        envelope: ps.IncomingMessageEnvelope[Event],
        collector: ps.MessageCollector,
        coordinator: ps.TaskCoordinator,
    ) -> None:
        event = envelope.value
        if event.kind == "confirmation":
            self.confirmed_ms.update(min(event.at_ms, self.confirmed_ms.get(event.at_ms)))
            self.context.schedule(envelope.key, event.at_ms + WAIT_MS, "forget")
        elif event.cents >= LARGE_CENTS:
            self.payment.update(event)
            self.context.schedule(envelope.key, event.at_ms + WAIT_MS, "decide")

    def on_timer(self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        if timer.name == "forget":
            self.confirmed_ms.clear()
            return
        payment, confirmed_ms = self.payment.get(), self.confirmed_ms.get()
        self.payment.clear()
        if payment is not None and (confirmed_ms is None or confirmed_ms > timer.time_ms):
            collector.emit(key=timer.key, value={"card": payment.card, "cents": payment.cents, "firing": timer.firing})


app = ps.StreamApplication("fraud-rule")
app.value_state("payment", value=ps.Struct(Event))
app.value_state("confirmed-ms", value=ps.Long())
bound = ps.BoundedOutOfOrderness("1min")
events = app.input("local.card-events", value=ps.Struct(Event), timestamp=lambda event: event.at_ms, watermark=bound)
(
    events.partition_by(lambda event: event.payment, id="by-payment")
    .process(Unconfirmed, stores=["payment", "confirmed-ms"], timers=ps.String(), id="unconfirmed")
    .send_to(app.output("local.alarms"))
)
