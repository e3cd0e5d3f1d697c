"""Builds and connects a stage's operators: from the entries through each other to the outlets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock.graph.specs import OperatorSpec, SourceSpec
from penstock.graph.topology import Channel, Topology
from penstock.runtime.context import Position
from penstock.runtime.messages.columns import NOWHERE, Accept, Fork, MeetingFork, Push, StageEntry, Target
from penstock.runtime.messages.outlet import Outlet
from penstock.runtime.messages.router import Router
from penstock.runtime.operator_clock import OperatorClock
from penstock.runtime.operators.base import Node, Operator, StageContext
from penstock.runtime.operators.elementwise import Chain, branch_of
from penstock.runtime.operators.table import operator_of, place_of_channel

MakeContext: TypeAlias = Callable[[Operator[Any], Mapping[str, Push]], StageContext]


@dataclass(frozen=True, slots=True, eq=False)
class Inlet:
    """Where messages come into an operator. What comes row by row counts with the operator that emits it."""

    accept: Accept
    push: Push


class Wiring:
    """The nodes of a stage, and the entries that lead to them."""

    def __init__(
        self,
        topology: Topology,
        stage: int,
        router: Router,
        position: Position,
        nodes: dict[str, Node],
        clock: OperatorClock,
    ) -> None:
        """`nodes` is filled during `build`, so that the caller can close the nodes made before a failure. `clock` times
        them."""
        self._topology = topology
        self._stage = stage
        self._operators = topology.stages[stage].operators
        self._outlets = tuple(router.outlets.values())
        self._position = position
        self._nodes = nodes
        self._clock = clock
        self._inlets: dict[int, tuple[Target, Inlet]] = {}
        """Id of an inlet → the inlet, and the same with a clock. One for each: forks compare where branches end."""
        self._reach: dict[str, frozenset[tuple[str, str]]] = {}
        """By operator: the operators and stores that its messages come to in this stage, its own included."""

    def build(self, context_of: MakeContext) -> None:
        """Build the nodes from the last operator to the first, so that the followers of each one exist."""
        for spec in reversed(self._operators):
            operator, following, outlets = operator_of(spec), *self._following(spec)
            context = context_of(operator, self._output_pushes(spec) if spec.sends else {})
            stores = frozenset(("store", name) for name in spec.stores)
            behind = frozenset[tuple[str, str]]().union(*(self._reach[op_id] for op_id in following))
            if stores & behind:
                context = replace(context, followed=True)
            self._nodes[spec.id] = operator.build(context, self._target(spec.id, following, outlets))
            self._reach[spec.id] = behind | stores | {("operator", spec.id)}

    def input_entry(self, spec: SourceSpec) -> StageEntry:
        return StageEntry(
            spec.id,
            operator_of(spec).place(spec.id),
            spec.key_serde,
            spec.value_serde,
            self._position,
            self._target(spec.id, *self._following(spec)),
            [outlet.accept_raw for outlet in self._outgoing(spec) if outlet.channel.raw],
            spec.timestamp,
        )

    def channel_entry(self, channel: Channel) -> StageEntry:
        place = place_of_channel(channel, self._topology.graph)
        target = self._target(channel.source, channel.targets, ())
        return StageEntry(channel.source, place, channel.key_serde, channel.carried_serde, self._position, target)

    def _following(self, spec: OperatorSpec) -> tuple[list[str], list[Outlet]]:
        """The followers of an operator: operators of this stage that read it, and the channels by which all its output
        leaves."""
        operators = [] if spec.changes_key else [other.id for other in self._operators if spec.id in other.upstream]
        outlets = [
            outlet
            for outlet in self._outgoing(spec)
            if not outlet.channel.raw and not (outlet.channel.output is not None and spec.sends)
        ]
        return operators, outlets

    def _outgoing(self, spec: OperatorSpec) -> list[Outlet]:
        return [outlet for outlet in self._outlets if outlet.channel.source == spec.id]

    def _target(self, source: str, operators: Sequence[str], outlets: Sequence[Outlet]) -> Target:
        targets: list[Target] = [*(self._inlet(op_id, source) for op_id in operators), *outlets]
        if len(targets) < 2:
            return targets[0] if targets else NOWHERE
        reached = [self._reach[op_id] for op_id in operators]
        meet = sum(map(len, reached)) > len(frozenset().union(*reached))
        return MeetingFork(targets, self._position, [*map(branch_of, targets)]) if meet else Fork(targets)

    def _inlet(self, op_id: str, source: str) -> Target:
        inlet = self._nodes[op_id].inlet(source)
        if isinstance(inlet, Chain):
            return inlet  # its steps run within others, and are timed there
        if id(inlet) not in self._inlets:
            self._inlets[id(inlet)] = inlet, Inlet(self._clock.timed(op_id, inlet.accept), inlet.push)
        return self._inlets[id(inlet)][1]

    def _output_pushes(self, spec: OperatorSpec) -> dict[str, Push]:
        """The pushes of this operator's outlets by `system.stream`, and by `stream` if no other output has that
        name."""
        pushes: dict[str, Push] = {}
        ambiguous: set[str] = set()
        for outlet in self._outgoing(spec):
            output = outlet.channel.output
            if output is None:
                continue
            pushes[str(output)] = outlet.push
            if output.stream in pushes:
                ambiguous.add(output.stream)
            pushes.setdefault(output.stream, outlet.push)
        return {name: push for name, push in pushes.items() if name not in ambiguous}
