"""The operators of an application, as plain values: a module for each family of kinds.

Whoever plans takes them from here, asks the questions of `OperatorSpec`, and knows no kind of operators. A new kind is
a class in one of the families, which answers where it is not as most, and names the class that runs it.
"""

from __future__ import annotations

from penstock.graph.specs.base import OperatorSpec, Use
from penstock.graph.specs.functions import (
    FilterBatchesSpec,
    FilterSpec,
    FlatMapSpec,
    FunctionSpec,
    MapAsyncSpec,
    MapBatchesSpec,
    MapSpec,
    PartitionBySpec,
    PartitionThroughSpec,
    WithKeySpec,
)
from penstock.graph.specs.graph import ApplicationGraph
from penstock.graph.specs.inputs import InputSpec, IntermediateSpec, MergeSpec, PatternSpec, SourceSpec
from penstock.graph.specs.outputs import OutputSpec, SendToSpec, SinkFunction, SinkSpec
from penstock.graph.specs.state import AggregateSpec, JoinSpec, WindowSpec
from penstock.graph.specs.tables import (
    SendToTableSpec,
    TableColumnsSpec,
    TableJoinKind,
    TableJoinSpec,
    TemporalJoinSpec,
)
from penstock.graph.specs.tasks import BatchTaskSpec, ColumnTaskSpec, ProcessSpec

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
