"""The columns of each operator's rows that anything after it reads: an exchange carries no others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.serdes import ColumnSerde
from penstock.graph.specs import ApplicationGraph, OperatorSpec, Use


class ColumnUse:
    """The use that is made of the rows of an application's operators."""

    def __init__(self, graph: ApplicationGraph) -> None:
        self._specs = {op.id: op for op in graph.operators}
        followers: dict[str, list[str]] = {op.id: [] for op in graph.operators}
        for op in graph.operators:
            for upstream in op.upstream:
                followers[upstream].append(op.id)
        self._of: dict[str, Use] = {}
        for op in reversed(graph.operators):
            self._of[op.id] = self._together(followers[op.id]) if op.sent_to is None else None

    def narrowed(self, serde: ColumnSerde, readers: Iterable[str]) -> ColumnSerde:
        """The serde of the columns that these operators need of rows with this serde."""
        use = self._together(readers)
        return serde if use is None else serde.narrowed(use)

    def _together(self, readers: Iterable[str]) -> Use:
        found = frozenset[str]()
        for reader in readers:
            spec = self._specs[reader]
            use = _use_of(spec, self._of[spec.id])
            if use is None:
                return None
            found |= use
        return found


def _use_of(spec: OperatorSpec, passed_on: Use) -> Use:
    """The columns that an operator needs of its messages, if `passed_on` is needed of those that it emits."""
    return spec.columns_read(passed_on) if spec.ordering is None else None
