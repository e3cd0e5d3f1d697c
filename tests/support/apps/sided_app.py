"""An application whose tables are filled by side inputs: one that counts what it was given, and one of the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock as ps

NAMES, EVENTS, JOINED = "names", "events", "joined"


def count_updates(message: ps.IncomingMessageEnvelope, store: ps.KeyValueStore[str, Any]) -> list[tuple[str, Any]]:
    """The value of a key says how many updates made it: one that is applied twice, or not at all, shows for ever."""
    if message.value is None:
        return [(message.key, None)]
    if message.value["do"] == "raise":
        raise ValueError("the processor refuses this name")
    before = store.get(message.key) or {"n": 0}
    return [(message.key, {"n": before["n"] + 1, "seq": message.value["seq"]})]


class Look(ps.StreamTask):
    """Says what both tables have for each event."""

    def init(self, context: ps.TaskContext) -> None:
        self.counted = context.store("counted")
        self.newest = context.store("newest")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        key = envelope.key
        # Twice: what an attempt sees does not change.
        found, again = ([self.counted.get(key), self.newest.get(key)] for _ in range(2))
        collector.emit(key=key, value={"id": envelope.value["id"], "counted": found[0], "newest": found[1]})
        if found != again:
            raise AssertionError(f"an attempt saw {found}, then {again}")


def sided(*, broadcast: bool = False) -> ps.StreamApplication:
    """Events by key, with what both tables have."""
    app = ps.StreamApplication("sided")
    app.table("counted", side_inputs=[f"local.{NAMES}"], processor=count_updates, broadcast=broadcast)
    app.table("newest", side_inputs=[f"local.{NAMES}"], broadcast=broadcast)
    events = app.input(f"local.{EVENTS}").partition_by(lambda event: event["key"], key=ps.String())
    events.process(Look, stores=["counted", "newest"]).send_to(app.output(f"local.{JOINED}", key=ps.String()))
    return app


APPS: dict[str, Callable[[], ps.StreamApplication]] = {
    "sided": sided,
    "sided_broadcast": lambda: sided(broadcast=True),
}
