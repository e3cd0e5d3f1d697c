"""filter: keeps a message or drops it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.api.graph import FilterSpec
from penstock.runtime.columns import Columns, Push
from penstock.runtime.context import failure_in
from penstock.runtime.operators.elementwise import Deliver, Elementwise


class Filter(Elementwise[FilterSpec]):
    """Each result is whether the message stays. What has no truth is this operator's failure."""

    def results(self, given: Iterator[Any]) -> list[Any]:
        function = self.spec.function
        return [True if function(each) else False for each in given]  # noqa: SIM210 - bool() is a call more

    def apply(self, columns: Columns, results: list[Any]) -> Columns:
        return columns.where(results)

    def deliver(self, downstream: Push) -> Deliver:
        op_id = self.spec.id

        def deliver(key: Any, value: Any, result: Any) -> None:
            try:
                kept = bool(result)
            except BaseException as error:
                raise failure_in(op_id, error) from error
            if kept:
                downstream(key, value)

        return deliver
