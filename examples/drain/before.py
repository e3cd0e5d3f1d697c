"""The departures of 2013: delays by airport and hour, and the sessions and totals of each aircraft."""

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


def delayed(departure: dict[str, Any]) -> dict[str, Any]:
    """The part of a departure that goes to the task of its airport."""
    return {"airport": departure["airport"], "delay": departure["delay"]}


app = ps.StreamApplication("delays")
app.store("aircraft")
departures = app.input(
    "local.departures",
    timestamp=lambda departure: departure["scheduled_ms"],
    watermark=ps.BoundedOutOfOrderness(max_delay_ms=24 * HOUR_MS),
)

hours = ps.Windows.tumbling(
    HOUR_MS, aggregates={"departures": ps.Count(), "minutes": ps.Sum(lambda message: message["delay"])}
)
(
    departures.map(delayed, id="delayed")
    .partition_by(lambda message: message["airport"], through="local.delays-by-airport", id="by-airport")
    .window(hours, id="hours")
    .map(lambda pane: {"hour": pane.window.start_ms, "firing": pane.firing, "delays": pane.message}, id="hour")
    .send_to(app.output("local.airport-delays"))
)

sessions = ps.Windows.session(
    6 * HOUR_MS, aggregates={"flights": ps.Count(), "miles": ps.Sum(lambda departure: departure["miles"])}
)
by_aircraft = departures.partition_by(lambda departure: departure["tailnum"], id="by-aircraft")
by_aircraft.process(AddUp, stores=["aircraft"], id="add-up")
(
    by_aircraft.window(sessions, id="sessions")
    .map(
        lambda pane: {"from": pane.window.start_ms, "to": pane.window.end_ms, "firing": pane.firing, **pane.message},
        id="session",
    )
    .send_to(app.output("local.aircraft-sessions"))
)
