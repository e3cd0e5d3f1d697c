"""The columns of each operator's rows that anything after it reads: an exchange carries no others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from penstock.api.expressions import Expression, Selection
from penstock.api.serdes import ColumnSerde
from penstock.api.time.aggregates import Aggregate
from penstock.api.time.windows import Aggregates
from penstock.graph.aggregation import column_aggregates, window_aggregates
from penstock.graph.specs import (
    AggregateSpec,
    ApplicationGraph,
    FilterSpec,
    MapSpec,
    OperatorSpec,
    PartitionBySpec,
    WindowSpec,
)

Use: TypeAlias = frozenset[str] | None
"""Names of columns; None: all of them, because code of the application or a stream gets whole rows."""


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
    if spec.ordering is not None:
        return None
    if isinstance(spec, MapSpec) and isinstance(spec.function, Selection):
        return spec.function.columns
    if isinstance(spec, FilterSpec | PartitionBySpec) and isinstance(spec.function, Expression):
        return None if passed_on is None else spec.function.columns | passed_on
    if isinstance(spec, AggregateSpec) and column_aggregates(spec.aggregates, spec.message_serde) is not None:
        return _columns_of(spec.aggregates)
    if isinstance(spec, WindowSpec) and window_aggregates(spec.window, spec.message_serde) is not None:
        contents = spec.window.contents
        if isinstance(contents, Aggregates) and spec.window.late_to is None:
            return _columns_of(contents.by_name)
    return None


def _columns_of(aggregates: Mapping[str, Aggregate]) -> Use:
    expressions: list[Any] = [each.of for each in aggregates.values()]
    return frozenset(name for each in expressions if isinstance(each, Expression) for name in each.columns)
