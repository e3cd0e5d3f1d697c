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
    """Waits for the confirmation of each payment. Events come in the order of their times."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.payment: ps.ValueState[Event] = context.value_state("payment")

    def process(
        self,
        envelope: ps.IncomingMessageEnvelope[Event],
        collector: ps.MessageCollector,
        coordinator: ps.TaskCoordinator,
    ) -> None:
        event = envelope.value
        if event.kind == "confirmation":
            self.payment.clear()
            self.context.cancel(envelope.key)
        elif event.cents >= LARGE_CENTS:
            self.payment.update(event)
            self.context.schedule(envelope.key, event.at_ms + WAIT_MS)

    def on_timer(self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        payment = self.payment.get()
        self.payment.clear()
        if payment is not None:
            collector.emit(key=timer.key, value={"card": payment.card, "cents": payment.cents, "firing": timer.firing})


app = ps.StreamApplication("fraud-rule")
app.value_state("payment", value=ps.Struct(Event))
bound = ps.BoundedOutOfOrderness("1min")
events = app.input("local.card-events", value=ps.Struct(Event), timestamp=lambda event: event.at_ms, watermark=bound)
(
    events.partition_by(lambda event: event.payment, id="by-payment")
    .process(Unconfirmed, stores=["payment"], timers=ps.String(), order="event-time", id="unconfirmed")
    .send_to(app.output("local.alarms"))
)
