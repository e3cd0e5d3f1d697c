"""Which declaration the serdes of a channel come from."""

from __future__ import annotations

from penstock.api.graph import ApplicationGraph, InputSpec, PartitionBySpec, ProcessSpec
from penstock.api.serdes.failures import Place, input_place, output_place, partition_by_place, process_place
from penstock.runtime.topology import Channel


def place_of_channel(channel: Channel, graph: ApplicationGraph) -> Place:
    """An output, an input whose bytes are passed on, or the messages that one operator sends to others."""
    if channel.output is not None:
        return output_place(channel.output)
    op = next(op for op in graph.operators if op.id == channel.source)
    name = f"messages of operator `{op.id}` to {', '.join(f'`{target}`' for target in channel.targets)}"
    match op:
        case InputSpec():
            return input_place(op.stream)
        case PartitionBySpec():
            return partition_by_place(name)
        case ProcessSpec():
            return process_place(name)
        case _:
            return Place(name, "")
