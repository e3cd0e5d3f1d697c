"""flat_map: value -> any number of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.api.graph import FlatMapSpec
from penstock.runtime.columns import Columns, Push
from penstock.runtime.operators.elementwise import Deliver, Elementwise


class FlatMap(Elementwise[FlatMapSpec]):
    """Each result is the values that take the message's place."""

    @property
    def call(self) -> Callable[[Any], list[Any]]:
        """The values are collected: a generator's failure is this operator's."""
        function = self.spec.function
        return lambda given: list(function(given))

    def apply(self, columns: Columns, results: list[Any]) -> Columns:
        return columns.expanded(results)

    def deliver(self, downstream: Push) -> Deliver:
        def deliver(key: Any, _value: Any, result: Any) -> None:
            for value in result:
                downstream(key, value)

        return deliver
