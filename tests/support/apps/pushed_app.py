"""Flights that are joined with two pushed tables: planes, partitioned, and carriers, in every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock as ps


class Enrich(ps.StreamTask):
    """Looks a flight's plane and carrier up."""

    def init(self, context: Any) -> None:
        self.planes, self.carriers = context.store("planes"), context.store("carriers")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        flight = envelope.value
        plane = self.planes.get(envelope.key)
        collector.emit(key=envelope.key, value={**flight, "plane": plane, "name": self.carriers.get(flight["carrier"])})


def enriched(folder: Path) -> ps.StreamApplication:
    """The application; its tables are in folders of this one."""
    app = ps.StreamApplication("pushed")
    app.store("planes", pushed=ps.PushedTable(str(folder / "planes"), key="tailnum"))
    carriers = ps.PushedTable(
        str(folder / "carriers"),
        key="carrier",
        value="name",
        format="csv",
        options={"header": "true"},
        broadcast=True,
    )
    app.store("carriers", value=ps.String(), pushed=carriers)
    flights = app.input("local.flights").process(Enrich, stores=["planes", "carriers"], id="enrich")
    flights.send_to(app.output("local.enriched"))
    return app
