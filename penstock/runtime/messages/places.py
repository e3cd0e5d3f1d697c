"""The declaration that the serdes of a channel come from."""

from __future__ import annotations

from penstock.api.serdes.failures import SerdePlace, output_place
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Channel
from penstock.runtime.operators.table import operator_of


def place_of_channel(channel: Channel, graph: ApplicationGraph) -> SerdePlace:
    if channel.output is not None:
        return output_place(channel.output)
    op = next(op for op in graph.operators if op.id == channel.source)
    targets = ", ".join(f"`{target}`" for target in channel.targets)
    return operator_of(op).place(f"messages of operator `{op.id}` to {targets}")
