"""Flights joined with planes, which a side input brings."""

from __future__ import annotations

import penstock as ps


def enriched() -> ps.StreamApplication:
    """Flights (key: tail) with the type of their plane, and the name of their carrier, which every task has."""
    app = ps.StreamApplication("enriched")
    planes = app.table("planes", value=ps.String(), side_inputs=["local.planes"])
    app.store("carriers", value=ps.String(), side_inputs=["local.carriers"], broadcast=True)
    joined = app.input("local.flights").join_table(
        planes, lambda flight, plane: {**flight, "plane": plane}, kind="left"
    )
    joined.process(Named, stores=["carriers"]).send_to(app.output("local.enriched"))
    return app


class Named(ps.StreamTask):
    """Adds the name of the carrier."""

    def init(self, context: ps.TaskContext) -> None:
        self.carriers = context.store("carriers")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        flight = envelope.value
        collector.emit(key=envelope.key, value={**flight, "name": self.carriers.get(flight["carrier"])})
