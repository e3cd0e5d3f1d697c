"""filter: keeps a message or drops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.api.graph import FilterSpec
from penstock.runtime.columns import Columns, Push
from penstock.runtime.operators.elementwise import Deliver, Elementwise


class Filter(Elementwise[FilterSpec]):
    """Each result is whether the message stays. What has no truth is this operator's failure."""

    @property
    def call(self) -> Callable[[Any], bool]:
        function = self.spec.function
        return lambda given: bool(function(given))

    def results(self, given: Iterator[Any]) -> list[Any]:
        function = self.spec.function
        return [True if function(each) else False for each in given]  # noqa: SIM210 - `call` and bool() are calls more

    def apply(self, columns: Columns, results: list[Any]) -> Columns:
        return columns.where(results)

    def deliver(self, downstream: Push) -> Deliver:
        def deliver(key: Any, value: Any, result: Any) -> None:
            if result:
                downstream(key, value)

        return deliver
