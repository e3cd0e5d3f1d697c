"""A job with a broadcast input: every task keeps what it has seen of all inputs, message by message."""

from __future__ import annotations

from typing import Any

import penstock as ps


class Seen(ps.StreamTask):
    """Counts how often each message came to this task: `stream-partition-offset` -> number."""

    def init(self, context: ps.TaskContext) -> None:
        self.seen = context.store("seen")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        name = f"{envelope.ssp.stream}-{envelope.ssp.partition}-{envelope.offset}"
        self.seen.put(name, (self.seen.get(name) or 0) + 1)


def seen_app() -> ps.TaskApplication:
    """Over `events` and `rates`."""
    app = ps.TaskApplication("totals", Seen)
    app.store("seen", key=ps.String(), value=ps.Json())
    app.input("local.events")
    app.input("local.rates")
    return app
