"""The flights of 2013 by scheduled time: what each airport did in each hour, and the sessions of each aircraft."""

from __future__ import annotations

from typing import Any

import penstock as ps

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def scheduled(movement: dict[str, Any]) -> int:
    """The event time of a departure or an arrival."""
    at: int = movement["scheduled_ms"]
    return at


app = ps.StreamApplication("flight-windows")
# The streams are in the order in which things happened: a delay of less than a day makes no flight late.
in_order = ps.BoundedOutOfOrderness(max_delay_ms=DAY_MS)
departures = app.input("local.departures", timestamp=scheduled, watermark=in_order)

hours = ps.Windows.tumbling(
    HOUR_MS, aggregates={"departures": ps.Count(), "delay": ps.Mean(lambda departure: departure["delay"])}
)
(
    departures.partition_by(lambda departure: departure["airport"], id="by-airport")
    .window(hours, id="hours")
    .map(lambda pane: {"hour": pane.window.start_ms, "firing": pane.firing, **pane.message}, id="hour")
    .send_to(app.output("local.airport-hours"))
)

sessions = ps.Windows.session(
    6 * HOUR_MS, aggregates={"flights": ps.Count(), "miles": ps.Sum(lambda departure: departure["miles"])}
)
by_aircraft = departures.partition_by(lambda departure: departure["tailnum"], id="by-aircraft")
(
    by_aircraft.window(sessions, id="sessions")
    .map(
        lambda pane: {
            "from": pane.window.start_ms,
            "to": pane.window.end_ms - 6 * HOUR_MS,
            "firing": pane.firing,
            **pane.message,
        },
        id="session",
    )
    .send_to(app.output("local.aircraft-sessions"))
)
