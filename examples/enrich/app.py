"""Flights with the names of their airlines, from a stream, and with their aircraft, from a table that is pushed."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import penstock as ps
from examples.enrich.data import PLANES, SCHEMA


def named(message: ps.IncomingMessageEnvelope, airlines: ps.KeyValueStore[str, str]) -> list[tuple[str, str]]:
    """What a message of the airlines leads to in the table."""
    return [(message.key, message.value["name"])]


class WithName(ps.StreamTask):
    """Adds to each flight the name that its airline has now, and by which batch and attempt it was looked up."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.airlines = context.store("airlines")
        self.life = secrets.token_hex(4)  # an attempt that is discarded takes the task object with it

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
    """The application; `planes` is the folder that has the editions of the planes."""
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
