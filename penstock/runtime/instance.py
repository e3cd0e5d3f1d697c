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
from penstock.api.store import StoreSpec
from penstock.runtime.context import Page, Position, SspTable
from penstock.runtime.operators import (
    Collector,
    Context,
    Entry,
    ProcessNode,
    Push,
    Requests,
    fan_out,
    sink_node,
    stateless_node,
)
from penstock.runtime.router import Outlet, Router
from penstock.runtime.topology import DEAD_LETTER_CHANNEL, Channel, Routing, Topology, has_collector
from penstock.state.engine import Engine
from penstock.state.overlay import Overlay
from penstock.state.store import TaskStore, UndoableStore

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
    """Decoded values kept per store and task."""
    dead_letter: bool = False
    store_class: type[TaskStore] = TaskStore


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
        self.channel_entries: dict[int, Entry] = {}
        """Channel number -> where its messages go in."""
        self.input_entries: dict[int, Entry] = {}
        """Index of an input -> where its messages go in (stage 0)."""
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def begin(self, token: str) -> None:
        """An attempt starts: empty overlays, an empty router, no requests."""
        self.router.begin(token)
        self.requests.commit_requested = self.requests.shutdown_requested = False
        self.overlays = {name: store.begin() for name, store in self.stores.items()}

    def close(self) -> None:
        """Close the user's tasks; every one, even if one raises. The first error is raised at the end."""
        errors: list[Exception] = []
        for process in self._processes:
            try:
                process.close()
            except Exception as error:
                errors.append(error)
        self._processes = []
        if errors:
            raise errors[0]

    # Marks, for jobs with a dead-letter stream.

    def mark(self) -> Mark:
        """A message begins; `undo` goes back to here."""
        for store in self.stores.values():
            if isinstance(store, UndoableStore):
                store.mark()
        return self.router.mark(), self.requests.commit_requested, self.requests.shutdown_requested

    def undo(self, mark: Mark) -> None:
        """Take back the message's writes, outputs and requests."""
        for store in self.stores.values():
            if isinstance(store, UndoableStore):
                store.undo()
        sent, self.requests.commit_requested, self.requests.shutdown_requested = mark
        self.router.undo(sent)

    def dead_letter_outlet(self) -> Outlet:
        """Where messages that failed go."""
        return next(o for o in self.router.outlets.values() if o.channel.name == DEAD_LETTER_CHANNEL)

    # Building.

    def _make_store(self, spec: StoreSpec, engines: Mapping[str, Engine]) -> TaskStore:
        cls = UndoableStore if self.settings.dead_letter else self.settings.store_class
        return cls(spec, engines[spec.name], self.settings.cache_entries.get(spec.name, 100_000))

    def _build(self) -> None:
        """Make the nodes from the last operator to the first, so that what follows each one exists."""
        nodes: dict[str, Push] = {}
        operators = self.topology.stages[self.stage].operators
        for op in reversed(operators):
            if isinstance(op, InputSpec):
                self._build_input(op, nodes)
            else:
                nodes[op.id] = self._build_node(op, nodes)
        for channel in self.topology.channels_to(self.stage):
            targets = fan_out([nodes[target] for target in channel.targets])
            self.channel_entries[channel.number] = Entry(
                channel.source, ((channel.key_serde, channel.value_serde, targets),)
            )

    def _downstream(self, op: OperatorSpec, nodes: Mapping[str, Push]) -> list[Push]:
        """What follows an operator: those of this stage that read it, and the channels that leave with it."""
        following = [nodes[other.id] for other in self.topology.stages[self.stage].operators if _feeds(op, other)]
        for number, channel in self._outgoing(op):
            if not channel.raw and not (channel.routing is Routing.OUTPUT and has_collector(op)):
                following.append(self.router.outlets[number].push)
        return following

    def _outgoing(self, op: OperatorSpec) -> list[tuple[int, Channel]]:
        return [(n, o.channel) for n, o in self.router.outlets.items() if o.channel.source == op.id]

    def _build_node(self, op: OperatorSpec, nodes: Mapping[str, Push]) -> Push:
        following = self._downstream(op, nodes)
        downstream = fan_out(following) if following else _drop
        if isinstance(op, ProcessSpec):
            stores = {name: self.stores[name] for name in op.stores}
            context = Context(self.settings.job_name, self.task, dict(stores), op.id)
            collector = Collector(op.id, downstream, self._output_pushes(op))
            process = ProcessNode(op, context, collector, self.requests, self.position)
            self._processes.append(process)
            return process.push
        if isinstance(op, SinkSpec):
            return sink_node(op, Collector(op.id, None, self._output_pushes(op)), self.requests, self.position)
        return stateless_node(op, downstream)

    def _build_input(self, op: InputSpec, nodes: Mapping[str, Push]) -> None:
        ways: list[tuple[Serde[Any], Serde[Any], Push]] = [
            (_AS_IT_IS, _AS_IT_IS, self.router.outlets[number].push_raw)
            for number, channel in self._outgoing(op)
            if channel.raw
        ]
        following = self._downstream(op, nodes)
        if following:
            ways.append((op.key_serde, op.value_serde, fan_out(following)))
        self.input_entries[self.topology.graph.inputs.index(op)] = Entry(op.id, tuple(ways))

    def _output_pushes(self, op: OperatorSpec) -> dict[str, Push]:
        """`system.stream`, and `stream` where it is clear, to the outlets of this operator."""
        pushes: dict[str, Push] = {}
        ambiguous: set[str] = set()
        for number, channel in self._outgoing(op):
            if channel.output is None:
                continue
            push = self.router.outlets[number].push
            pushes[str(channel.output)] = push
            if channel.output.stream in pushes:
                ambiguous.add(channel.output.stream)
            pushes.setdefault(channel.output.stream, push)
        return {name: push for name, push in pushes.items() if name not in ambiguous}


_AS_IT_IS = Bytes()


def _feeds(op: OperatorSpec, other: OperatorSpec) -> bool:
    """Whether `other` reads `op` inside this stage; what a partition_by emits always leaves the stage."""
    return op.id in other.upstream and not isinstance(op, PartitionBySpec)


def _drop(_key: object, _value: object) -> None:
    """Nothing follows."""
