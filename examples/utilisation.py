"""The README's example."""

from __future__ import annotations

import penstock as ps


class Utilisation(ps.StreamTask):
    """Adds up what each aircraft did."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("aircraft")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        total = self.totals.get(envelope.key, {"flights": 0, "miles": 0})
        total["flights"] += 1
        total["miles"] += envelope.value["distance"]
        self.totals.put(envelope.key, total)
        collector.emit(key=envelope.key, value=total)


app = ps.StreamApplication("utilisation")
app.store("aircraft", key=ps.String(), value=ps.Json())
(
    app.input("local.trips", value=ps.Json())
    .filter(lambda flight: flight["tailnum"])
    .partition_by(lambda flight: flight["tailnum"], key=ps.String())
    .process(Utilisation, stores=["aircraft"])
    .send_to(app.output("local.utilisation", key=ps.String(), value=ps.Json()))
)
