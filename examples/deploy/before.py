"""The departures of 2013: the delays of each airport by the hour, and the totals of each aircraft."""

from __future__ import annotations

from typing import Any

import penstock as ps

HOUR_MS = 3_600_000


class AddUp(ps.StreamTask):
    """Keeps the departures and miles of each aircraft."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("aircraft")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        total = self.totals.get(envelope.key, {"departures": 0, "miles": 0})
        total["departures"] += 1
        total["miles"] += envelope.value["miles"]
        self.totals.put(envelope.key, total)


def late(departure: dict[str, Any]) -> int:
    """The minutes by which it was late."""
    minutes: int = departure["delay"]
    return abs(minutes)


app = ps.StreamApplication("delays")
app.store("aircraft")
departures = app.input(
    "local.departures",
    timestamp=lambda departure: departure["scheduled_ms"],
    watermark=ps.BoundedOutOfOrderness(max_delay_ms=24 * HOUR_MS),
)

hours = ps.Windows.tumbling(HOUR_MS, aggregates={"departures": ps.Count(), "late": ps.Sum(late)})
(
    departures.partition_by(lambda departure: departure["airport"], id="by-airport")
    .window(hours, id="hours")
    .map(lambda pane: {"from": pane.window.start_ms, "to": pane.window.end_ms, **pane.message}, id="hour")
    .send_to(app.output("local.airport-delays"))
)
(
    departures.partition_by(lambda departure: departure["tailnum"], id="by-aircraft").process(
        AddUp, stores=["aircraft"], id="add-up"
    )
)
