"""Tables: stores that streams write and are joined with, as Samza's Table API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.api.serdes import Serde


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A declared table, which `send_to` writes and `join_table` reads. `app.table(...)` makes it.

    Example:
        >>> app = ps.StreamApplication("names")
        >>> airlines = app.table("airlines", value=ps.String())
        >>> _ = app.input("local.airlines", value=ps.String()).send_to(airlines)
        >>> flights = app.input("local.flights").join_table(airlines, lambda flight, name: {**flight, "airline": name})
        >>> _ = flights.send_to(app.output("local.named"))
        >>> runner = TestRunner(app).input("local.airlines", [("UA", "United")]).run()
        >>> runner = runner.input("local.flights", [("UA", {"flight": 1}), ("XX", {"flight": 2})]).run()
        >>> [message.value for message in runner.output("local.named")], runner.store("airlines")
        ([{'flight': 1, 'airline': 'United'}], {'UA': 'United'})
    """

    name: str
    """The name of its store."""
    key_serde: Serde[Any]
    """The serde of the keys of streams that write or join it."""
    history_ms: int | None = None
    """The time for which versions are kept below the watermark, in milliseconds; None: the table has no versions."""
