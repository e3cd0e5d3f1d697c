"""Cutting an application's graph into stages and the channels between them. Pure: values in, values out.

Stage 0 reads the inputs and runs the stateless operators before the first repartition, in the Spark worker. Every
later stage runs in the tasks' containers. A last, separate stage writes the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock.api.graph import (
    ApplicationGraph,
    OperatorSpec,
    OutputSpec,
)
from penstock.api.serdes import Bytes, Serde, String
from penstock.api.ssp import SystemStream
from penstock.api.store import StoreSpec
from penstock.errors import ConfigError
from penstock.runtime.operators.table import operator_of
from penstock.wording import listed

DEAD_LETTER_CHANNEL = "=>dead-letter"
"""Not a name an operator can have."""


class Routing(Enum):
    """Which task a message of a channel goes to."""

    KEY = "key"
    """The one that owns its key."""
    TASK = "task"
    """The same as the one it comes from."""
    OUTPUT = "output"
    """The one that writes the partition of the output its key belongs to."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The messages one operator sends to a later stage.

    `source` is the operator that emits them, `targets` are the operators that get them (none: an output stream).
    A `raw` channel carries an input's bytes as they are; they are decoded where they arrive.
    """

    number: int
    name: str
    source: str
    source_stage: int
    targets: tuple[str, ...]
    target_stage: int
    routing: Routing
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    output: SystemStream | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs between two exchanges: its operators in order, and the stages it gets messages from."""

    number: int
    operators: tuple[OperatorSpec, ...]
    stores: tuple[StoreSpec, ...]
    sources: tuple[int, ...]
    shuffled: bool
    """False if every message comes from the same task's earlier stage, so that no shuffle is needed before it."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole job: stages in order, channels by number, and where outputs are written."""

    graph: ApplicationGraph
    stages: tuple[Stage, ...]
    channels: tuple[Channel, ...]
    sink: int | None
    """The number of the stage that writes outputs: one after the last of `stages`; None without outputs."""
    sink_sources: tuple[int, ...]

    @property
    def container_stages(self) -> tuple[Stage, ...]:
        """The stages that run in containers."""
        return self.stages[1:]

    def channels_from(self, stage: int) -> tuple[Channel, ...]:
        """The channels that leave a stage."""
        return tuple(c for c in self.channels if c.source_stage == stage)

    def channels_to(self, stage: int) -> tuple[Channel, ...]:
        """The channels that enter a stage."""
        return tuple(c for c in self.channels if c.target_stage == stage)

    def sources_of(self, stage: int) -> tuple[int, ...]:
        """The stages that send to a stage, the sink stage included."""
        return self.sink_sources if stage == self.sink else self.stages[stage].sources

    def targets_of(self, stage: int) -> tuple[int, ...]:
        """The stages a stage sends to; each of its attempts sends a trailer to every task of them."""
        return tuple(sorted({c.target_stage for c in self.channels_from(stage)}))

    def is_shuffled(self, stage: int) -> bool:
        """Whether rows may come to a task of this stage from other tasks."""
        return True if stage == self.sink else self.stages[stage].shuffled

    def expected_sources(self, stage: int, task: int, tasks: int) -> frozenset[tuple[int, int]]:
        """The (stage, task) pairs an attempt must have a trailer of."""
        senders = range(tasks) if self.is_shuffled(stage) else (task,)
        return frozenset((source, sender) for source in self.sources_of(stage) for sender in senders)


def plan_topology(graph: ApplicationGraph, dead_letter: SystemStream | None = None) -> Topology:
    """Cut the graph into stages.

    An operator runs in the earliest stage that all its messages can reach; one with a store or a task at least in
    stage 1, since stage 0 has no container.

    Raises:
        ConfigError: two stages would share a store, or an operator uses something that is not declared.
    """
    specs = {op.id: op for op in graph.operators}
    stage_of = _assign_stages(graph)
    last = max(stage_of.values())
    edges = _Channels(last + 1)
    for op in graph.operators:
        for upstream in op.upstream:
            edges.connect(specs[upstream], op, stage_of)
    outputs = {output.stream: output for output in graph.outputs}
    _connect_outputs(graph, edges, stage_of, outputs)
    if dead_letter is not None:
        _connect_dead_letters(edges, dead_letter, last)
    channels = tuple(edges.channels)
    stages = tuple(_stage(n, graph, stage_of, channels) for n in range(last + 1))
    sink_sources = tuple(sorted({c.source_stage for c in channels if c.target_stage == last + 1}))
    return Topology(graph, stages, channels, last + 1 if sink_sources else None, sink_sources)


def _assign_stages(graph: ApplicationGraph) -> dict[str, int]:
    stage_of: dict[str, int] = {}
    exits: dict[str, int] = {}
    for op in graph.operators:
        operator = operator_of(op)
        stage = max((exits[u] for u in op.upstream), default=0)
        stage_of[op.id] = max(stage, 1) if operator.needs_task else stage
        exits[op.id] = stage_of[op.id] + operator.changes_key
    _check_stores(graph, stage_of)
    return stage_of


def _check_stores(graph: ApplicationGraph, stage_of: dict[str, int]) -> None:
    users = graph.store_users()
    for store, ids in users.items():
        stages = {stage_of[i] for i in ids}
        if len(stages) > 1:
            where = ", ".join(f"`{i}` (stage {stage_of[i]})" for i in ids)
            raise ConfigError(
                f"store `{store}` is used by operators of different stages: {where}. A store belongs to one stage: "
                "give each its own store, or put the operators after the same partition_by"
            )
    unused = [s.name for s in graph.stores if s.name not in users]
    if unused:
        names = listed([f"`{name}`" for name in unused])
        what = f"store {names} is" if len(unused) == 1 else f"stores {names} are"
        them = "it" if len(unused) == 1 else "them"
        raise ConfigError(f"{what} declared but no operator uses {them}: name {them} in process(..., stores=[...])")


class _Channels:
    """Collects channels and numbers them."""

    def __init__(self, sink: int) -> None:
        self.sink = sink
        self.channels: list[Channel] = []

    def connect(self, source: OperatorSpec, target: OperatorSpec, stage_of: dict[str, int]) -> None:
        a, b = stage_of[source.id], stage_of[target.id]
        by_key = operator_of(source).changes_key
        if not by_key and a == b:
            return
        for number, channel in enumerate(self.channels):
            if channel.source == source.id and channel.target_stage == b:
                self.channels[number] = replace(channel, targets=(*channel.targets, target.id))
                return
        self._add(
            lambda number: Channel(
                number,
                source.id,
                source.id,
                a,
                (target.id,),
                b,
                Routing.KEY if by_key else Routing.TASK,
                source.key_serde,
                source.value_serde,
                raw=operator_of(source).is_input,
            )
        )

    def to_output(self, name: str, source: str, stage: int, output: OutputSpec) -> None:
        self._add(
            lambda number: Channel(
                number,
                name,
                source,
                stage,
                (),
                self.sink,
                Routing.OUTPUT,
                output.key_serde,
                output.value_serde,
                output=output.stream,
            )
        )

    def _add(self, make: Callable[[int], Channel]) -> None:
        self.channels.append(make(len(self.channels)))


def _connect_outputs(
    graph: ApplicationGraph, edges: _Channels, stage_of: dict[str, int], outputs: dict[SystemStream, OutputSpec]
) -> None:
    """A channel for each send_to; and for each output no send_to names, one from every task that may send to it."""
    for op in graph.operators:
        output = operator_of(op).output
        if output is not None:
            edges.to_output(op.id, op.id, stage_of[op.id], outputs[output])
    for op in graph.operators:
        if operator_of(op).sends:
            for stream, spec in outputs.items():
                edges.to_output(f"{op.id}=>{stream}", op.id, stage_of[op.id], spec)


def _connect_dead_letters(edges: _Channels, stream: SystemStream, last: int) -> None:
    for stage in range(last + 1):
        edges.to_output(DEAD_LETTER_CHANNEL, DEAD_LETTER_CHANNEL, stage, OutputSpec(stream, String(), Bytes()))


def _stage(number: int, graph: ApplicationGraph, stage_of: dict[str, int], channels: tuple[Channel, ...]) -> Stage:
    operators = tuple(op for op in graph.operators if stage_of[op.id] == number)
    names = {store for op in operators for store in op.stores}
    incoming = [c for c in channels if c.target_stage == number]
    return Stage(
        number=number,
        operators=operators,
        stores=tuple(s for s in graph.stores if s.name in names),
        sources=tuple(sorted({c.source_stage for c in incoming})),
        shuffled=any(c.routing is Routing.KEY for c in incoming),
    )
