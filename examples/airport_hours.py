"""The window of the README."""

from __future__ import annotations

import penstock as ps

HOUR_MS = 3_600_000

app = ps.StreamApplication("airport-hours")
takeoffs = app.input(
    "local.takeoffs",
    timestamp=lambda takeoff: takeoff["scheduled_ms"],
    watermark=ps.BoundedOutOfOrderness(max_delay_ms=24 * HOUR_MS),
)
hours = ps.Windows.tumbling(
    HOUR_MS, aggregates={"flights": ps.Count(), "delay": ps.Mean(lambda takeoff: takeoff["delay"])}
)
(
    takeoffs.partition_by(lambda takeoff: takeoff["airport"])
    .window(hours, id="hours")
    .map(lambda pane: {"hour": pane.window.start_ms, **pane.message})
    .send_to(app.output("local.takeoffs-by-hour"))
)
