"""Passes each event on once, although its sender delivers some of them again.

A sender that sees no answer sends an event once more, perhaps to another partition. All deliveries of an event have the
same `id`. An id is remembered for a day. Publish events to the stream `events`, run the job, and read the stream
`events-once`:

    penstock run examples/jobs/deduplication.py:app
"""

from __future__ import annotations

import penstock as ps

app = ps.StreamApplication("deduplication")
(
    app.input("local.events")
    .partition_by(lambda event: event["id"], id="by-id")
    .deduplicate("1d", id="seen")
    .send_to(app.output("local.events-once"))
)
