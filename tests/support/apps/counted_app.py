"""Words, counted by key behind an exchange that may go through a durable intermediate stream."""

from __future__ import annotations

from typing import Any

import penstock as ps


class Count(ps.StreamTask):
    """Counts, and emits each count."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        count = (self.counts.get(envelope.key) or 0) + 1
        self.counts.put(envelope.key, count)
        collector.emit(key=envelope.key, value=count)


def counted(through: str | None) -> ps.StreamApplication:
    """The application; `through` is its intermediate stream, if it has one."""
    app = ps.StreamApplication("counted")
    app.store("counts", key=ps.String(), value=ps.Json())
    words = app.input("local.words").partition_by(lambda word: word, through=through, id="by-word")
    words.process(Count, stores=["counts"], id="count").send_to(app.output("local.counts"))
    return app
