"""A stage of one task, ready to run: its operators, the user's tasks, and the stores with their caches.

This is all that an attempt touches besides its overlay. An attempt owns the instance while it runs; if the attempt
is applied the instance serves the next batch, if it is discarded the instance is closed with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.api.graph import InputSpec, OperatorSpec, PartitionBySpec, ProcessSpec, SinkSpec
from penstock.api.serdes import Bytes, Serde
from penstock.api.serdes.failures import Place, input_place
from penstock.api.store import StoreSpec
from penstock.runtime.columns import Push, Step, Way, is_stateless, needs_keys, one_by_one, step_of
from penstock.runtime.context import Page, Position, SspTable
from penstock.runtime.operators import (
    Collector,
    Context,
    ProcessNode,
    Requests,
    fan_out,
    sink_node,
    stateless_node,
)
from penstock.runtime.places import place_of_channel
from penstock.runtime.router import Outlet, Router
from penstock.runtime.topology import DEAD_LETTER_CHANNEL, Routing, Topology, has_collector
from penstock.state.engines.engine import Engine
from penstock.state.engines.overlay import Overlay
from penstock.state.stores.build import build_store
from penstock.state.stores.task_store import StoreLayer, TaskStore

Mark: TypeAlias = tuple[dict[int, int], bool, bool]
"""Where a message began: what the outlets held, and the requests made so far."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What the runtime needs to know of the configuration. Plain data, sent to every worker and container."""

    job_name: str
    tasks: int
    output_partitions: Mapping[str, int]
    """Partitions of every output stream, the dead-letter stream included, by `system.stream`."""
    cache_entries: Mapping[str, int] = field(default_factory=dict)
    """Values kept in memory per store and task."""
    dead_letter: bool = False
    store_layers: tuple[type[StoreLayer], ...] = ()
    """What is put around every store, from the inside to the outside."""
    config: Mapping[str, str] = field(default_factory=dict)
    """What a task sees of the configuration."""


class StageInstance:
    """One (stage, task), alive. Used by one thread at a time."""

    def __init__(
        self, topology: Topology, stage: int, task: int, settings: RuntimeSettings, engines: Mapping[str, Engine]
    ) -> None:
        """Build the operators and init the user's tasks. Raises OperatorFailedError if that fails."""
        self.stage = stage
        self.task = task
        self.settings = settings
        self.topology = topology
        self.ssps = SspTable(tuple((op.stream.system, op.stream.stream) for op in topology.graph.inputs))
        self.position = Position(Page(self.ssps, (), (), ()))
        self.requests = Requests()
        self.router = Router(topology, stage, task, settings.tasks, self.position, settings.output_partitions)
        self.stores = {spec.name: self._make_store(spec, engines) for spec in topology.stages[stage].stores}
        self.overlays: dict[str, Overlay] = {}
        self._processes: list[ProcessNode] = []
        self.channel_ways: dict[int, list[Way]] = {}
        """Channel number -> the ways its messages take."""
        self.input_ways: dict[int, list[Way]] = {}
        """Index of an input -> the ways its messages take (stage 0)."""
        try:
            self._build()
        except BaseException as error:
            try:
                self.close()
            except BaseException as second:
                error.add_note(f"closing the tasks made before failed as well: {type(second).__name__}")
            raise

    def begin(self, token: str) -> None:
        """An attempt starts: empty overlays, an empty router, no requests."""
        self.router.begin(token)
        self.requests.commit_requested = self.requests.shutdown_requested = False
        self.overlays = {name: store.begin() for name, store in self.stores.items()}

    def close(self) -> None:
        """Close the user's tasks; every one, even if one raises. The first error is raised at the end."""
        errors: list[BaseException] = []
        for process in self._processes:
            try:
                process.close()
            except BaseException as error:
                errors.append(error)
        self._processes = []
        if errors:
            raise errors[0]

    # Marks, for jobs with a dead-letter stream.

    def mark(self) -> Mark:
        """A message begins; `undo` goes back to here."""
        for store in self.stores.values():
            store.mark()
        return self.router.mark(), self.requests.commit_requested, self.requests.shutdown_requested

    def undo(self, mark: Mark) -> None:
        """Take back the message's writes, outputs and requests."""
        for store in self.stores.values():
            store.undo()
        sent, self.requests.commit_requested, self.requests.shutdown_requested = mark
        self.router.undo(sent)

    def dead_letter_outlet(self) -> Outlet:
        """Where messages that failed go."""
        return next(o for o in self.router.outlets.values() if o.channel.name == DEAD_LETTER_CHANNEL)

    # Building.

    def _make_store(self, spec: StoreSpec, engines: Mapping[str, Engine]) -> TaskStore:
        settings = self.settings
        entries = settings.cache_entries.get(spec.name, 100_000)
        layers = settings.store_layers
        return build_store(spec, engines[spec.name], entries, undoable=settings.dead_letter, layers=layers)

    def _build(self) -> None:
        """Make the nodes from the last operator to the first, so that what follows each one exists."""
        nodes: dict[str, Push] = {}
        operators = self.topology.stages[self.stage].operators
        for op in reversed(operators):
            if isinstance(op, InputSpec):
                self._build_input(op, nodes)
            else:
                nodes[op.id] = self._build_node(op, nodes)
        specs = {op.id: op for op in operators}
        for channel in self.topology.channels_to(self.stage):
            targets = [specs[target] for target in channel.targets]
            place = place_of_channel(channel, self.topology.graph)
            self.channel_ways[channel.number] = [
                self._way(channel.source, place, channel.key_serde, channel.value_serde, targets, [], nodes)
            ]

    def _following(self, op: OperatorSpec) -> tuple[list[OperatorSpec], list[Outlet]]:
        """What follows an operator: those of this stage that read it, and the channels that leave with it."""
        operators = [other for other in self.topology.stages[self.stage].operators if _feeds(op, other)]
        outlets = [
            outlet
            for outlet in self._outgoing(op)
            if not outlet.channel.raw and not (outlet.channel.routing is Routing.OUTPUT and has_collector(op))
        ]
        return operators, outlets

    def _outgoing(self, op: OperatorSpec) -> list[Outlet]:
        return [outlet for outlet in self.router.outlets.values() if outlet.channel.source == op.id]

    def _way(
        self,
        source: str,
        place: Place,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        operators: list[OperatorSpec],
        outlets: list[Outlet],
        nodes: Mapping[str, Push],
    ) -> Way:
        """Steps as long as a single stateless operator follows, then whatever takes the messages from there."""
        steps: list[Step] = []
        steps_need_keys = False
        while len(operators) == 1 and not outlets and is_stateless(operators[0]):
            step = step_of(operators[0])
            if step is not None:
                steps.append(step)
                steps_need_keys = steps_need_keys or needs_keys(operators[0])
            operators, outlets = self._following(operators[0])
        if len(outlets) == 1 and not operators:
            channel = outlets[0].channel
            same_keys = channel.key_serde is key_serde
            end = outlets[0].end(same_keys=same_keys, same_values=channel.value_serde is value_serde)
        else:
            same_keys = False
            end = one_by_one(_push_to(operators, outlets, nodes))
        return Way(source, place, key_serde, value_serde, tuple(steps), end, steps_need_keys, not same_keys)

    def _build_node(self, op: OperatorSpec, nodes: Mapping[str, Push]) -> Push:
        downstream = _push_to(*self._following(op), nodes)
        if isinstance(op, ProcessSpec):
            stores = {name: self.stores[name] for name in op.stores}
            context = Context(self.settings.job_name, self.settings.config, self.task, dict(stores), op.id)
            collector = Collector(op.id, downstream, self._output_pushes(op))
            process = ProcessNode(op, context, collector, self.requests, self.position)
            self._processes.append(process)
            return process.push
        if isinstance(op, SinkSpec):
            return sink_node(op, Collector(op.id, None, self._output_pushes(op)), self.requests, self.position)
        return stateless_node(op, downstream, self.position)

    def _build_input(self, op: InputSpec, nodes: Mapping[str, Push]) -> None:
        ways = [
            Way(
                op.id,
                input_place(op.stream),
                _AS_IT_IS,
                _AS_IT_IS,
                (),
                outlet.end(same_keys=True, same_values=True),
                end_needs_keys=False,
            )
            for outlet in self._outgoing(op)
            if outlet.channel.raw
        ]
        operators, outlets = self._following(op)
        if operators or outlets:
            place = input_place(op.stream)
            ways.append(self._way(op.id, place, op.key_serde, op.value_serde, operators, outlets, nodes))
        self.input_ways[self.topology.graph.inputs.index(op)] = ways

    def _output_pushes(self, op: OperatorSpec) -> dict[str, Push]:
        """`system.stream`, and `stream` where it is clear, to the outlets of this operator."""
        pushes: dict[str, Push] = {}
        ambiguous: set[str] = set()
        for outlet in self._outgoing(op):
            output = outlet.channel.output
            if output is None:
                continue
            pushes[str(output)] = outlet.push
            if output.stream in pushes:
                ambiguous.add(output.stream)
            pushes.setdefault(output.stream, outlet.push)
        return {name: push for name, push in pushes.items() if name not in ambiguous}


_AS_IT_IS = Bytes()


def _feeds(op: OperatorSpec, other: OperatorSpec) -> bool:
    """Whether `other` reads `op` inside this stage; what a partition_by emits always leaves the stage."""
    return op.id in other.upstream and not isinstance(op, PartitionBySpec)


def _push_to(operators: list[OperatorSpec], outlets: list[Outlet], nodes: Mapping[str, Push]) -> Push:
    targets = [nodes[op.id] for op in operators] + [outlet.push for outlet in outlets]
    return fan_out(targets) if targets else _drop


def _drop(_key: object, _value: object) -> None:
    """Nothing follows."""
