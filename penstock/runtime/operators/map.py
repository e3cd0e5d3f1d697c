"""map: value -> value."""

from __future__ import annotations

from typing import Any

from penstock.api.graph import MapSpec
from penstock.runtime.columns import Columns, Push
from penstock.runtime.operators.elementwise import Deliver, Elementwise


class Map(Elementwise[MapSpec]):
    """Each result is the message's new value."""

    def apply(self, columns: Columns, results: list[Any]) -> Columns:
        return columns.with_values(results)

    def deliver(self, downstream: Push) -> Deliver:
        return lambda key, _value, result: downstream(key, result)
