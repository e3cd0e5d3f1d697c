"""Flights with the names of their airlines, from a side input, and with their aircraft, from a pushed table."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import penstock as ps
from examples.enrich.data import PLANES, SCHEMA


def named(message: ps.IncomingMessageEnvelope, airlines: ps.KeyValueStore[str, str]) -> list[tuple[str, str]]:
    """The table entry of a message about an airline."""
    return [(message.key, message.value["name"])]


class WithName(ps.StreamTask):
    """Adds to each flight the present name of its airline, and the batch and attempt that looked it up."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.airlines = context.store("airlines")
        self.life = secrets.token_hex(4)  # new with each task object, which goes with a discarded attempt

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        flight = envelope.value
        named = {
            "id": flight["id"],
            "tail": flight["tailnum"],
            "flight": f"{flight['carrier']}{flight['flight']}",
            "airline": self.airlines.get(flight["carrier"]),
            "source": envelope.ssp.partition,
            "batch": self.context.batch_time_ms,
            "attempt": f"{self.life}-{self.context.batch_time_ms}",
        }
        collector.emit(key=flight["tailnum"], value=named)


def with_plane(flight: dict[str, Any], plane: dict[str, Any] | None) -> dict[str, Any]:
    """A flight and its aircraft."""
    return {**flight, "plane": plane}


def application(planes: Path = PLANES) -> ps.StreamApplication:
    """The application. `planes` is the folder with the editions of the planes."""
    app = ps.StreamApplication("enriched-flights")
    app.table(
        "airlines",
        value=ps.String(),
        side_inputs=[ps.SideInput("local.airlines", value=ps.Json())],
        processor=named,
        broadcast=True,
    )
    planes_table = app.table(
        "planes",
        pushed=ps.PushedTable(
            str(planes), key="tailnum", format="csv", schema=SCHEMA, options={"header": "true", "nullValue": "NA"}
        ),
    )
    (
        app.input("local.flights", key=ps.String())
        .filter(lambda flight: flight["tailnum"], id="has-tail-number")
        .process(WithName, stores=["airlines"], id="with-name")
        .partition_by(lambda flight: flight["tail"], key=ps.String(), id="by-tail-number")
        .join_table(planes_table, with_plane, kind="left", id="with-plane")
        .send_to(app.output("local.enriched-flights", key=ps.String()))
    )
    return app


app = application()
