"""filter: keeps a message or drops it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.api.callbacks import UNSTARTED, unused
from penstock.api.graph import FilterSpec
from penstock.runtime.columns import Columns, Push
from penstock.runtime.context import failure_in
from penstock.runtime.operators.elementwise import Deliver, Elementwise


class Filter(Elementwise[FilterSpec]):
    """Each result is whether the message stays. What has no truth is this operator's failure."""

    def results(self, given: Iterator[Any]) -> list[Any]:
        function, unstarted = self.spec.function, UNSTARTED
        return [
            # True needs no second look; bool() would be a call more
            True
            if (kept := function(each)) is True
            else (kept.__class__ not in unstarted or _refuse(kept))
            if kept
            else False
            for each in given
        ]

    def apply(self, columns: Columns, results: list[Any]) -> Columns:
        return columns.where(results)

    def deliver(self, downstream: Push) -> Deliver:
        op_id = self.spec.id

        def deliver(key: Any, value: Any, result: Any) -> None:
            try:
                kept = bool(result) and (type(result) not in UNSTARTED or _refuse(result))
            except BaseException as error:
                raise failure_in(op_id, error) from error
            if kept:
                downstream(key, value)

        return deliver


def _refuse(result: object) -> bool:
    raise unused("the function of the filter", result)
