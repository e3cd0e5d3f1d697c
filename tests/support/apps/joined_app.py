"""An application with joins in a row, in two stages: arrivals with departures of the same aircraft, and the pairs with
the gates of their airports."""

from __future__ import annotations

from typing import Any

import penstock as ps

HOUR_MS = 3_600_000


def turnaround(arrival: Any, departure: Any) -> dict[str, Any]:
    """A pair; the departure may be missing."""
    return {"airport": arrival["airport"], "arrival": arrival["n"], "departure": departure and departure["n"]}


def with_gate(found: Any, gate: Any) -> dict[str, Any]:
    """A pair, and a gate if there is one."""
    return {**found, "gate": gate and gate["n"]}


def joined() -> ps.StreamApplication:
    """It reads `{"n", "at", "tailnum", "airport"}`, which come at most an hour late."""
    app = ps.StreamApplication("joined")
    policy = ps.BoundedOutOfOrderness(max_delay_ms=HOUR_MS)
    arrivals, departures, gates = (
        app.input(f"local.{name}", timestamp=lambda event: event["at"], watermark=policy, id=name)
        for name in ("arrivals", "departures", "gates")
    )
    by_aircraft = departures.partition_by(lambda flight: flight["tailnum"], id="departures-by-aircraft")
    turnarounds = arrivals.partition_by(lambda flight: flight["tailnum"], id="arrivals-by-aircraft").join(
        by_aircraft, turnaround, within_ms=(0, 6 * HOUR_MS), kind="left", id="turnarounds"
    )
    turnarounds.send_to(app.output("local.turnarounds"), id="to-turnarounds")
    at_airport = turnarounds.partition_by(lambda found: found["airport"], id="by-airport")
    at_airport.join(
        gates.partition_by(lambda gate: gate["airport"], id="gates-by-airport"),
        with_gate,
        within_ms=HOUR_MS,
        kind="left",
        id="gated",
    ).send_to(app.output("local.gated"), id="to-gated")
    return app
