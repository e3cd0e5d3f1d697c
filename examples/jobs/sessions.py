"""Puts the clicks of each user into visits, which end when no click comes for half an hour.

Clicks may be up to five minutes out of order. Publish some to the stream `clicks`, run the job, and read the stream
`visits`:

    penstock run examples/jobs/sessions.py:app
"""

from dataclasses import dataclass

import penstock as ps


@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at_ms: int


app = ps.StreamApplication("sessions")
clicks = app.input(
    "local.clicks",
    value=ps.Struct(Click),
    timestamp=lambda click: click.at_ms,
    watermark=ps.BoundedOutOfOrderness("5min"),
)
visits = ps.Windows.session(
    "30min",
    aggregates={
        "clicks": ps.Count(),
        "first_page": ps.First(lambda click: click.page),
        "last_page": ps.Last(lambda click: click.page),
    },
    late_to=app.output("local.late-clicks", value=ps.Struct(Click)),
)
(
    clicks.partition_by(lambda click: click.user, id="by-user")
    .window(visits, rows=True, id="visits")
    .send_to(app.output("local.visits"))
)
