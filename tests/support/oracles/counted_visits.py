"""A processor whose rows say which rows came before them: what is lost, doubled or made twice shows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.support.faults.plan import Faults

OUTPUT = "user STRING, added LONG, visits LONG, before STRING, token STRING"


class CountVisits(StatefulProcessor):
    """Counts the rows of each user. Every row that it yields has a random token, and the token of the user's last."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._faults = faults

    def init(self, handle: Any) -> None:
        self._visits = handle.getValueState("visits", "n LONG, token STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        if self._faults is not None:
            self._faults.at("processor")
        before, last = self._visits.get() or (0, None)
        added, token = sum(1 for _ in rows), uuid.uuid4().hex
        self._visits.update((before + added, token))
        yield Row(user=key[0], added=added, visits=before + added, before=last, token=token)

    def close(self) -> None:
        """Nothing is open."""
