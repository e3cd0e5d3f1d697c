"""An application with windows in a row, in two stages: visits by person and hour, and of these the sums by day."""

from __future__ import annotations

from typing import Any

import penstock as ps

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def shown(pane: ps.WindowPane[Any, Any], visits: int) -> dict[str, int]:
    """A pane as a message."""
    assert pane.window is not None
    return {"from": pane.window.start_ms, "visits": visits}


def windowed() -> ps.StreamApplication:
    """It reads `{"who", "at"}`, which come at most an hour late."""
    app = ps.StreamApplication("windowed")
    visits = app.input(
        "local.visits",
        timestamp=lambda visit: visit["at"],
        watermark=ps.BoundedOutOfOrderness(max_delay_ms=HOUR_MS),
        id="visits",
    )
    hours = visits.partition_by(lambda visit: visit["who"]).window(
        ps.Windows.tumbling(HOUR_MS, aggregates={"visits": ps.Count()}), id="hours"
    )
    counts = hours.map(lambda pane: shown(pane, pane.message["visits"]))
    counts.send_to(app.output("local.hours"))
    days = counts.partition_by(lambda _: "all").window(
        ps.Windows.tumbling(DAY_MS, fold=(0, lambda total, count: total + count["visits"])), id="days"
    )
    days.map(lambda pane: shown(pane, pane.message)).send_to(app.output("local.days"))
    return app
