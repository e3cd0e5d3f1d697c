"""The operator of each spec."""

from __future__ import annotations

from typing import Any

from penstock.api.serdes.failures import SerdePlace, output_place
from penstock.graph.specs import (
    AggregateSpec,
    ApplicationGraph,
    BatchTaskSpec,
    ColumnTaskSpec,
    FilterBatchesSpec,
    FilterSpec,
    FlatMapSpec,
    InputSpec,
    IntermediateSpec,
    JoinSpec,
    MapAsyncSpec,
    MapBatchesSpec,
    MapSpec,
    MergeSpec,
    OperatorSpec,
    PartitionBySpec,
    PartitionThroughSpec,
    ProcessSpec,
    SendToSpec,
    SendToTableSpec,
    SinkSpec,
    TableColumnsSpec,
    TableJoinSpec,
    TemporalJoinSpec,
    WindowSpec,
    WithKeySpec,
)
from penstock.graph.topology import Channel
from penstock.runtime.operators.base import Operator
from penstock.runtime.operators.columns.aggregate import AggregateOperator
from penstock.runtime.operators.columns.batches import FilterBatches, MapBatches, WithKey
from penstock.runtime.operators.columns.processor import ColumnTask
from penstock.runtime.operators.columns.table import TableColumns
from penstock.runtime.operators.elementwise import Filter, FlatMap, Map, PartitionBy, PartitionThrough
from penstock.runtime.operators.join import StreamJoin
from penstock.runtime.operators.join_table import JoinTable
from penstock.runtime.operators.map_async import MapAsync
from penstock.runtime.operators.ordered import OrderedOperator, without_order
from penstock.runtime.operators.passing import Input, Intermediate, Merge, SendTo
from penstock.runtime.operators.send_to_table import SendToTable
from penstock.runtime.operators.sink import Sink
from penstock.runtime.operators.tasks.batch_task import BatchTaskOperator
from penstock.runtime.operators.tasks.process import Process
from penstock.runtime.operators.temporal_join import TemporalJoin
from penstock.runtime.operators.window import WindowOperator

OPERATORS: dict[type[OperatorSpec], type[Operator[Any]]] = {
    AggregateSpec: AggregateOperator,
    BatchTaskSpec: BatchTaskOperator,
    ColumnTaskSpec: ColumnTask,
    FilterBatchesSpec: FilterBatches,
    FilterSpec: Filter,
    FlatMapSpec: FlatMap,
    InputSpec: Input,
    IntermediateSpec: Intermediate,
    JoinSpec: StreamJoin,
    MapAsyncSpec: MapAsync,
    MapBatchesSpec: MapBatches,
    MapSpec: Map,
    MergeSpec: Merge,
    PartitionBySpec: PartitionBy,
    PartitionThroughSpec: PartitionThrough,
    ProcessSpec: Process,
    SendToSpec: SendTo,
    SendToTableSpec: SendToTable,
    SinkSpec: Sink,
    TableColumnsSpec: TableColumns,
    TableJoinSpec: JoinTable,
    TemporalJoinSpec: TemporalJoin,
    WindowSpec: WindowOperator,
    WithKeySpec: WithKey,
}


def operator_of(spec: OperatorSpec) -> Operator[Any]:
    if (order := spec.ordering) is not None:
        return OrderedOperator(spec, order, operator_of(without_order(spec, order)))
    return OPERATORS[type(spec)](spec)


def place_of_channel(channel: Channel, graph: ApplicationGraph) -> SerdePlace:
    if channel.output is not None:
        return output_place(channel.output)
    op = next(op for op in graph.operators if op.id == channel.source)
    targets = ", ".join(f"`{target}`" for target in channel.targets)
    return operator_of(op).place(f"messages of operator `{op.id}` to {targets}")
