"""The job of the soak, `penstock run tests.soak.job:app`.

It reads `kafka.events` and keeps, by key, the total and the last event, which expires; by group, windows of a second
of event time. It writes a total for each event to `kafka.totals` and each pane to `kafka.panes`, both exactly once, and
the same total to `local.audit`, at least once.
"""

from __future__ import annotations

from typing import Any

import penstock as ps

NAME = "soak"
INPUT, TOTALS, PANES, AUDIT = "events", "totals", "panes", "audit"
PARTITIONS = 4
GROUPS = 7
WINDOW_MS = 1000
TTL_MS = 20_000
FIRST_MS = 1_700_000_000_005
STEP_MS = 10
"""The event time of event n is FIRST_MS + n * STEP_MS: never on the edge of a window."""


def group_of(key: str) -> str:
    """The group of a key such as `k12`."""
    return f"g{int(key[1:]) % GROUPS}"


class Totals(ps.StreamTask):
    """Counts and adds up the events of each key, and keeps its last event for a while."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals, self.seen = context.store("totals"), context.store("seen")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        event = envelope.value
        count, total = self.totals.get(envelope.key) or (0, 0)
        count, total = count + 1, total + event["n"]
        self.totals.put(envelope.key, [count, total])
        self.seen.put(envelope.key, event["id"])
        collector.send(AUDIT, key=envelope.key, value=[event["id"], count, total])
        collector.emit(key=envelope.key, value=[event["id"], count, total])


def application() -> ps.StreamApplication:
    """Two stages behind the input, which share nothing."""
    made = ps.StreamApplication(NAME)
    made.store("totals", key=ps.String(), value=ps.Json())
    made.store("seen", key=ps.String(), value=ps.Json(), ttl_ms=TTL_MS)
    made.output(f"local.{AUDIT}", key=ps.String(), value=ps.Json())
    events = made.input(f"kafka.{INPUT}", value=ps.Json(), timestamp=lambda event: event["t"])
    totals = events.partition_by(lambda event: event["k"], key=ps.String(), id="by-key").process(
        Totals, stores=["totals", "seen"], id="totals"
    )
    totals.send_to(made.output(f"kafka.{TOTALS}", key=ps.String(), value=ps.Json()))
    sums: dict[str, Any] = {"count": ps.Count(), "sum": ps.Sum(lambda event: event["n"])}
    groups = events.partition_by(lambda event: group_of(event["k"]), key=ps.String(), id="by-group")
    panes = groups.window(ps.Windows.tumbling(WINDOW_MS, aggregates=sums), id="seconds")
    panes.map(lambda pane: [pane.window.start_ms, pane.message["count"], pane.message["sum"]]).send_to(
        made.output(f"kafka.{PANES}", key=ps.String(), value=ps.Json())
    )
    return made


app = application()
