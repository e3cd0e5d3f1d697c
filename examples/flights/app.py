"""The totals of every aircraft and every carrier in 2013: two stateful stages, one after the other."""

from __future__ import annotations

from typing import Any

import penstock as ps


class AircraftTotals(ps.StreamTask):
    """Keeps each aircraft's running totals, and passes each flight on to its carrier."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("aircraft")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        total = add_flight(self.totals.get(envelope.key), envelope.value)
        self.totals.put(envelope.key, total)
        collector.send("aircraft-totals", key=envelope.key, value=total)
        collector.emit(key=envelope.key, value=envelope.value)


class CarrierTotals(ps.StreamTask):
    """Keeps each carrier's running totals."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("carriers")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        total = add_flight(self.totals.get(envelope.key), envelope.value)
        self.totals.put(envelope.key, total)
        collector.send("carrier-totals", key=envelope.key, value=total)


def add_flight(total: dict[str, Any] | None, flight: dict[str, Any]) -> dict[str, Any]:
    """The totals with one more flight. Cancelled flights have no air time and no delay."""
    total = total or {"flights": 0, "miles": 0, "air_time": 0, "worst_delay": None}
    total["flights"] += 1
    total["miles"] += flight["distance"]
    total["air_time"] += flight["air_time"] or 0
    delay = flight["arr_delay"]
    if delay is not None and (total["worst_delay"] is None or delay > total["worst_delay"]):
        total["worst_delay"] = delay
    return total


def application(system: str) -> ps.StreamApplication:
    """The application with its input and outputs in this system."""
    app = ps.StreamApplication("flights")
    app.store("aircraft", key=ps.String(), value=ps.Json())
    app.store("carriers", key=ps.String(), value=ps.Json())
    app.output(f"{system}.aircraft-totals", key=ps.String(), value=ps.Json())
    app.output(f"{system}.carrier-totals", key=ps.String(), value=ps.Json())
    (
        app.input(f"{system}.flights", value=ps.Json())
        .filter(lambda flight: flight["tailnum"], id="has-tail-number")
        .partition_by(lambda flight: flight["tailnum"], key=ps.String(), id="by-tail-number")
        .process(AircraftTotals, stores=["aircraft"], id="aircraft-totals")
        .partition_by(lambda flight: flight["carrier"], key=ps.String(), id="by-carrier")
        .process(CarrierTotals, stores=["carriers"], id="carrier-totals")
    )
    return app


app = application("local")
