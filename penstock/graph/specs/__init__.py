"""The operators of an application, as plain values: a module for each family of kinds.

Whoever plans takes them from here, asks the questions of `OperatorSpec`, and knows no kind of operators. A new kind is
a class in one of the families, which answers where it is not as most, and names the class that runs it.
"""

from __future__ import annotations

from penstock.graph.specs.code import (
    BatchTaskSpec,
    ColumnTaskSpec,
    FilterBatchesSpec,
    FilterSpec,
    FlatMapSpec,
    FunctionSpec,
    MapAsyncSpec,
    MapBatchesSpec,
    MapSpec,
    PartitionBySpec,
    PartitionThroughSpec,
    ProcessSpec,
    WithKeySpec,
)
from penstock.graph.specs.graph import (
    ApplicationGraph,
    InputSpec,
    IntermediateSpec,
    MergeSpec,
    OperatorSpec,
    OutputSpec,
    PatternSpec,
    SendToSpec,
    SinkFunction,
    SinkSpec,
    SourceSpec,
    Use,
)
from penstock.graph.specs.state import (
    AggregateSpec,
    JoinSpec,
    SendToTableSpec,
    TableColumnsSpec,
    TableJoinKind,
    TableJoinSpec,
    TemporalJoinSpec,
    WindowSpec,
)

__all__ = [
    "AggregateSpec",
    "ApplicationGraph",
    "BatchTaskSpec",
    "ColumnTaskSpec",
    "FilterBatchesSpec",
    "FilterSpec",
    "FlatMapSpec",
    "FunctionSpec",
    "InputSpec",
    "IntermediateSpec",
    "JoinSpec",
    "MapAsyncSpec",
    "MapBatchesSpec",
    "MapSpec",
    "MergeSpec",
    "OperatorSpec",
    "OutputSpec",
    "PartitionBySpec",
    "PartitionThroughSpec",
    "PatternSpec",
    "ProcessSpec",
    "SendToSpec",
    "SendToTableSpec",
    "SinkFunction",
    "SinkSpec",
    "SourceSpec",
    "TableColumnsSpec",
    "TableJoinKind",
    "TableJoinSpec",
    "TemporalJoinSpec",
    "Use",
    "WindowSpec",
    "WithKeySpec",
]
