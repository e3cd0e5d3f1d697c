"""The flights of 2013 by scheduled time: airport hours, aircraft sessions, and the flight after each arrival."""

from __future__ import annotations

from typing import Any

import penstock as ps

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def scheduled(movement: dict[str, Any]) -> int:
    """The event time of a departure or an arrival."""
    at: int = movement["scheduled_ms"]
    return at


def turnaround(arrival: dict[str, Any], departure: dict[str, Any]) -> dict[str, Any]:
    """An arrival, and a departure that could be the aircraft's next one."""
    return {
        "arrival": f"{arrival['tailnum']} {arrival['flight']} {arrival['scheduled_ms']}",
        "departure": [departure["scheduled_ms"], departure["flight"]],
    }


def earlier(first: list[Any] | None, second: list[Any]) -> list[Any]:
    """The earlier of two departures."""
    return second if first is None else min(first, second)


app = ps.StreamApplication("flight-windows")
# The streams are in the order of the actual times: a delay of less than a day does not make a message late.
in_order = ps.BoundedOutOfOrderness(max_delay_ms=DAY_MS)
departures = app.input("local.departures", timestamp=scheduled, watermark=in_order)
arrivals = app.input("local.arrivals", timestamp=scheduled, watermark=in_order)

# The departures of each airport and hour.
hours = ps.Windows.tumbling(
    HOUR_MS, aggregates={"departures": ps.Count(), "delay": ps.Mean(lambda departure: departure["delay"])}
)
(
    departures.partition_by(lambda departure: departure["airport"], id="by-airport")
    .window(hours, id="hours")
    .map(lambda pane: {"hour": pane.window.start_ms, "firing": pane.firing, **pane.message}, id="hour")
    .send_to(app.output("local.airport-hours"))
)

# The departures of each aircraft, as long as the next one follows within six hours.
sessions = ps.Windows.session(
    6 * HOUR_MS, aggregates={"flights": ps.Count(), "miles": ps.Sum(lambda departure: departure["miles"])}
)
by_aircraft = departures.partition_by(lambda departure: departure["tailnum"], id="by-aircraft")
(
    by_aircraft.window(sessions, id="sessions")
    .map(lambda pane: {"from": pane.window.start_ms, "firing": pane.firing, **pane.message}, id="session")
    .send_to(app.output("local.aircraft-sessions"))
)

# Each arrival with the aircraft's departures in the next 24 hours. A window keeps the earliest of them.
earliest = ps.Windows.session(DAY_MS + 1, fold=(None, lambda first, found: earlier(first, found["departure"]), earlier))
(
    arrivals.partition_by(lambda arrival: arrival["tailnum"], id="arrivals-by-aircraft")
    .join(by_aircraft, turnaround, within_ms=(0, DAY_MS), id="turnarounds")
    .partition_by(lambda found: found["arrival"], id="by-arrival")
    .window(earliest, id="earliest")
    .map(lambda pane: {"from": pane.window.start_ms, "firing": pane.firing, "next": pane.message}, id="next")
    .send_to(app.output("local.next-departures"))
)
