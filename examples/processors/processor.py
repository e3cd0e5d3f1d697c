"""A processor written for PySpark: it counts how often each aircraft has flown to each airport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

KEY = ["tailnum", "dest"]
OUTPUT = "tailnum STRING, dest STRING, flights LONG, miles LONG"


class Routes(StatefulProcessor):
    """Counts flights, and adds up their miles."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.totals = handle.getValueState("totals", "flights LONG, miles LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Add the flights of a batch."""
        flights, miles = self.totals.get() or (0, 0)
        for row in rows:
            flights += 1
            miles += row.distance
        self.totals.update((flights, miles))
        yield Row(tailnum=key[0], dest=key[1], flights=flights, miles=miles)

    def close(self) -> None:
        """Nothing is open."""
