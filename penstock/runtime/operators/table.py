"""The operator of each spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.base.plugins import load
from penstock.graph.serde_failures import SerdePlace, output_place
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.graph.topology import Channel
from penstock.runtime.operators.base import Operator


def operator_of(spec: OperatorSpec) -> Operator[Any]:
    if spec.ordering is not None:
        around: Callable[[OperatorSpec, Operator[Any]], Operator[Any]] = load(spec.ordering.operator)
        return around(spec, operator_of(spec.without_order()))
    operator: type[Operator[Any]] = load(spec.operator)
    return operator(spec)


def place_of_channel(channel: Channel, graph: ApplicationGraph) -> SerdePlace:
    if channel.output is not None:
        return output_place(channel.output)
    op = next(op for op in graph.operators if op.id == channel.source)
    targets = ", ".join(f"`{target}`" for target in channel.targets)
    return operator_of(op).place(f"messages of operator `{op.id}` to {targets}")
