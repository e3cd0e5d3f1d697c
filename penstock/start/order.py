"""Warnings of a start: operators that depend on the order of messages, and inputs that have none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.api.ssp import SystemStream
from penstock.base.wording import listed
from penstock.graph.specs import ApplicationGraph, OperatorSpec


def order_warnings(graph: ApplicationGraph, keeps_order: Callable[[SystemStream], bool]) -> Iterator[str]:
    """A warning for each operator whose results depend on an order that its messages do not have.

    Args:
        keeps_order: says of an input if its system keeps the order of messages across partitions. Asked for inputs of
            such operators alone.
    """
    reads: dict[str, frozenset[SystemStream]] = {}
    for op in graph.operators:
        own = frozenset([] if op.input_stream is None else [op.input_stream])
        reads[op.id] = own.union(*(reads[up] for up in op.upstream))
        if op.ordering is None and op.order_matters:
            unordered = sorted(str(stream) for stream in reads[op.id] if not keeps_order(stream))
            if unordered:
                yield _warning(op, unordered)


def _warning(op: OperatorSpec, streams: list[str]) -> str:
    names, one = listed([f"`{stream}`" for stream in streams]), len(streams) == 1
    order = 'declare order="event-time" for the operator, or ' if op.takes_order else ""
    return (
        f"the results of operator `{op.id}` depend on the order of messages, because {op.order_matters}. The "
        f"{'input' if one else 'inputs'} {names} {'spreads' if one else 'spread'} messages over several partitions, "
        f"which are read side by side, so later messages may come before earlier ones. To have an order, {order}have "
        f"{'the input' if one else 'each input'} read in order, or as one partition"
    )
