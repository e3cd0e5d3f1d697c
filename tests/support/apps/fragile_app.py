"""Applications in which messages end their processes."""

from __future__ import annotations

from typing import Any

import penstock as ps
from tests.support.apps.job_app import die

SERDES: dict[str, Any] = {"key": ps.String(), "value": ps.Json()}


def fragile(event: dict[str, Any]) -> dict[str, Any]:
    """Ends this process if the event says so."""
    if event.get("do") == "die":
        die(event["how"])
    return event


def checked_app() -> ps.StreamApplication:
    """One step before any exchange, which runs in Spark's workers or in the direct one."""
    app = ps.StreamApplication("checked")
    app.input("local.events", **SERDES).map(fragile).send_to(app.output("local.checked", **SERDES))
    return app


def copied(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Three of one, of which only the second may end its process."""
    return [{**event, "copy": copy, "do": event.get("do") if copy == 1 else None} for copy in range(3)]


class Copies(ps.StreamTask):
    """Passes on what does not end its process."""

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=fragile(envelope.value))


def copies_app() -> ps.StreamApplication:
    """An expansion, and its results in containers."""
    app = ps.StreamApplication("copies")
    copies = app.input("local.events", **SERDES).flat_map(copied).partition_by(lambda event: event["key"], **SERDES)
    copies.process(Copies).send_to(app.output("local.copies", **SERDES))
    return app
