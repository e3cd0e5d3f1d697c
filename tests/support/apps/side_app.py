"""Flights joined with planes, which a side input brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import penstock as ps
from penstock.metrics.registry import MetricsRegistry


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

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        flight = envelope.value
        collector.emit(key=envelope.key, value={**flight, "name": self.carriers.get(flight["carrier"])})


class Seats(ps.SideInputsProcessorFactory):
    """Keeps the seats of planes that are not lost, and as many more as the configuration says."""

    def get_side_inputs_processor(
        self, config: Mapping[str, str], metrics_registry: MetricsRegistry
    ) -> ps.SideInputsProcessor:
        return Kept(int(config["app.extra"]))


class Kept:
    """The processor of one task."""

    def __init__(self, extra: int) -> None:
        self.extra = extra

    def process(self, message: ps.IncomingMessageEnvelope, store: ps.KeyValueStore[Any, Any]) -> list[ps.Entry]:
        return [ps.Entry(message.key, None if message.value["lost"] else message.value["seats"] + self.extra)]
