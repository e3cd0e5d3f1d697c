"""The graph of a run, for those who look at it from outside. Pure."""

from __future__ import annotations

import re

from penstock.graph.specs import OperatorSpec
from penstock.graph.topology import DEAD_LETTER_CHANNEL, Channel, Topology
from penstock.job.shown_graph import GraphEdge, GraphOperator, GraphStage, JobGraph


def graph_of(topology: Topology, run_id: str) -> JobGraph:
    """The stages with operators, and the edges between them and the streams.

    Sinks and the outbox are part of the edges that end in their streams. The dead-letter stream has one edge for each
    stage.
    """
    stages = tuple(
        GraphStage(stage.number, tuple(map(_operator, stage.operators))) for stage in topology.stages if stage.operators
    )
    reads = (
        GraphEdge(str(op.input_stream), stage.number)
        for stage in topology.stages
        for op in stage.operators
        if op.input_stream is not None
    )
    channels = map(_of_channel, topology.channels)
    through = (GraphEdge(str(op.stream), topology.stage_of(op.id)) for op in topology.graph.intermediates)
    return JobGraph(run_id, stages, tuple(dict.fromkeys((*reads, *channels, *through))))


def _of_channel(channel: Channel) -> GraphEdge:
    name = "" if channel.name == DEAD_LETTER_CHANNEL else channel.source
    target = channel.target_stage if channel.output is None else str(channel.output)
    return GraphEdge(channel.source_stage, target, name)


def _operator(op: OperatorSpec) -> GraphOperator:
    words = re.findall("[A-Z][a-z]*", type(op).__name__.removesuffix("Spec"))
    stream = "" if op.input_stream is None else str(op.input_stream)
    return GraphOperator(op.id, " ".join(words).lower(), op.stores, stream)
