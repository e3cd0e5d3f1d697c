"""Checks that messages have keys where an operator keeps or looks for something by them. Pure."""

from __future__ import annotations

from collections.abc import Container

from penstock.api.ssp import SystemStream
from penstock.errors import ConfigError
from penstock.graph.specs import (
    AggregateSpec,
    ApplicationGraph,
    BatchTaskSpec,
    ColumnTaskSpec,
    InputSpec,
    IntermediateSpec,
    JoinSpec,
    OperatorSpec,
    PartitionBySpec,
    ProcessSpec,
    SendToTableSpec,
    TableJoinSpec,
    TemporalJoinSpec,
    WindowSpec,
)
from penstock.refusals import Refusals

_GIVE_KEYS = (PartitionBySpec, IntermediateSpec, ProcessSpec, BatchTaskSpec, ColumnTaskSpec)
"""Operators whose messages have keys; those of a task have, if it gives them some."""


def check_keys(graph: ApplicationGraph, keyless: Container[SystemStream]) -> None:
    """Raise ConfigError if an operator works by key, and its messages have none: all of a partition would be one key.

    Args:
        keyless: the streams whose messages have no keys.
    """
    without: dict[str, SystemStream] = {}
    refusals = Refusals("operators work by key, and their messages have none")
    for op in graph.operators:
        if isinstance(op, InputSpec):
            if op.stream in keyless:
                without[op.id] = op.stream
        elif not isinstance(op, _GIVE_KEYS) and (found := [up for up in op.upstream if up in without]):
            stream = without[found[0]]
            if _works_by_key(op):
                other = ", or declare the window with keyed=False" if isinstance(op, WindowSpec) else ""
                error = ConfigError(
                    f"operator `{op.id}` works by key, and the messages of `{stream}` have none: put "
                    f".partition_by(...) before it{other}"
                )
                refusals.note(error)
            without[op.id] = stream
    refusals.check()


def _works_by_key(op: OperatorSpec) -> bool:
    if isinstance(op, WindowSpec):
        return op.window.keyed
    return isinstance(op, AggregateSpec | JoinSpec | SendToTableSpec | TableJoinSpec | TemporalJoinSpec)
