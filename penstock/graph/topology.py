"""Cuts an application's graph into stages and the channels between them. Pure.

Stage 0 reads the inputs and runs the stateless operators before the first repartition, in the Spark worker. Every
later stage runs in the tasks' containers. Messages for exactly-once outputs go to a stage without operators, behind
these: the outbox. A last, separate stage writes the other outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from penstock.api.intermediate import IntermediateMessageSerde
from penstock.api.serdes import Bytes, Columns, ColumnSerde, Json, Serde, String
from penstock.api.ssp import SystemStream
from penstock.base.wording import listed
from penstock.errors import ConfigError
from penstock.graph.serdes import ColumnUse
from penstock.graph.specs import ApplicationGraph, IntermediateSpec, OperatorSpec, OutputSpec
from penstock.graph.stores import StoreSpec
from penstock.system.contract.definition import QUERY_SYSTEM

DEAD_LETTER_CHANNEL = "=>dead-letter"
"""No operator can have this name."""
_LATER = -1
"""The stage of a channel to an output, until it is known."""


class Routing(Enum):
    """The task that a message of a channel goes to."""

    KEY = "key"
    """The task that owns the key."""
    TASK = "task"
    """The task that sent the message."""
    OUTPUT = "output"
    """The task that writes the output partition of the key."""
    THROUGH = "through"
    """The task that owns the key. It writes to the partition of the intermediate stream that has its number."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The messages one operator sends to a later stage.

    `source` is the operator that emits them, `targets` are the operators that get them (none: a stream gets them).
    A `raw` channel carries an input's bytes as they are; they are decoded where they arrive. Rows of a schema are
    decoded at the input, because a channel carries them in columns. It carries those that the targets use.
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
    columns: ColumnSerde | None = None
    """The columns of its rows that it carries; None: it carries bytes."""
    may_be_partial: bool = False
    """It leads to one operator, and may carry states of it in the place of rows (`OperatorSpec.may_get_partial`)."""

    @property
    def carried_serde(self) -> Serde[Any]:
        """The serde of the values that arrive."""
        return self.columns or self.value_serde

    @property
    def is_output(self) -> bool:
        """True if its messages go to an output of the application, and not to an intermediate stream or to the dead
        letters."""
        return self.output is not None and self.routing is not Routing.THROUGH and self.name != DEAD_LETTER_CHANNEL


@dataclass(frozen=True, slots=True)
class Stage:
    """The operators between two exchanges, in order, and the stages that send messages to them."""

    number: int
    operators: tuple[OperatorSpec, ...]
    stores: tuple[StoreSpec, ...]
    sources: tuple[int, ...]
    shuffled: bool
    """False if every message comes from the same task's earlier stage, so that no shuffle is needed before it."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole job: stages in order, channels by number, and the stages that write outputs."""

    graph: ApplicationGraph
    stages: tuple[Stage, ...]
    channels: tuple[Channel, ...]
    sink: int | None
    """The number of the stage that writes at-least-once outputs and intermediate streams: one after the last of
    `stages`; None without any."""
    sink_sources: tuple[int, ...]
    outbox: int | None = None
    """The number of the container stage that keeps messages for exactly-once outputs, the last of `stages`; None
    without such outputs."""

    @property
    def container_stages(self) -> tuple[Stage, ...]:
        return self.stages[1:]

    def stage_of(self, operator: str) -> int:
        """The number of the stage that runs an operator."""
        return next(stage.number for stage in self.stages for op in stage.operators if op.id == operator)

    def channels_from(self, stage: int) -> tuple[Channel, ...]:
        return tuple(c for c in self.channels if c.source_stage == stage)

    def channels_to(self, stage: int) -> tuple[Channel, ...]:
        return tuple(c for c in self.channels if c.target_stage == stage)

    def streams_of(self, stage: int) -> tuple[SystemStream, ...]:
        return tuple(dict.fromkeys(c.output for c in self.channels_to(stage) if c.output is not None))

    def sources_of(self, stage: int) -> tuple[int, ...]:
        """The stages that send to a stage, the sink stage included."""
        return self.sink_sources if stage == self.sink else self.stages[stage].sources

    def targets_of(self, stage: int) -> tuple[int, ...]:
        """The stages a stage sends to; every task of them gets trailers that name its attempts."""
        return tuple(sorted({c.target_stage for c in self.channels_from(stage)}))

    def is_shuffled(self, stage: int) -> bool:
        return True if stage == self.sink else self.stages[stage].shuffled

    def expected_sources(self, stage: int, task: int, tasks: int) -> frozenset[tuple[int, int]]:
        """The (stage, task) pairs from which an attempt must have everything."""
        if self.is_shuffled(stage):
            return _all_pairs(self.sources_of(stage), tasks)
        return frozenset((source, task) for source in self.sources_of(stage))


@lru_cache(maxsize=64)  # each task of a stage expects the same in each batch
def _all_pairs(stages: tuple[int, ...], tasks: int) -> frozenset[tuple[int, int]]:
    return frozenset((stage, task) for stage in stages for task in range(tasks))


def plan_topology(
    graph: ApplicationGraph,
    dead_letter: SystemStream | None = None,
    exactly_once: Collection[SystemStream] = (),
) -> Topology:
    """Cut the graph into stages. `exactly_once`: the outputs, the dead-letter stream among them, that get each message
    once.

    An operator runs in the earliest stage that all its messages can reach; one with a store or a task at least in
    stage 1, since stage 0 has no container. All operators that use a store or a table run in the stage of the last of
    them, unless the job only reads it: such a store is part of each stage that uses it.

    Raises:
        ConfigError: two stages would share a store or a table, or an operator uses something that is not declared.
    """
    specs = {op.id: op for op in graph.operators}
    stage_of = _assign_stages(graph)
    last = max(stage_of.values())
    edges = _Channels()
    for op in graph.operators:
        for upstream in op.upstream:
            edges.connect(specs[upstream], op, stage_of)
    outputs = {output.stream: output for output in graph.outputs}
    _connect_outputs(graph, edges, stage_of, outputs)
    if dead_letter is not None:
        _connect_dead_letters(edges, dead_letter, last)
    use = ColumnUse(graph)
    channels, outbox = _placed([_with_columns(each, use, specs) for each in edges.channels], last, exactly_once)
    count = last + (1 if outbox is None else 2)
    stages = tuple(_stage(n, graph, stage_of, channels) for n in range(count))
    sink_sources = tuple(sorted({c.source_stage for c in channels if c.target_stage == count}))
    return Topology(graph, stages, channels, count if sink_sources else None, sink_sources, outbox)


def _with_columns(channel: Channel, use: ColumnUse, specs: Mapping[str, OperatorSpec]) -> Channel:
    serde = channel.value_serde
    if channel.output is not None or not isinstance(serde, ColumnSerde):
        return channel
    carried = use.narrowed(serde, channel.targets)
    one, *others = channel.targets
    may_be_partial = not others and specs[one].may_get_partial
    return replace(channel, columns=carried, may_be_partial=may_be_partial)


def _placed(
    channels: Sequence[Channel], last: int, exactly_once: Collection[SystemStream]
) -> tuple[tuple[Channel, ...], int | None]:
    """Set the target stages of channels to outputs. Returns the channels, and the number of the outbox."""
    kept = any(channel.output in exactly_once for channel in channels)
    outbox, sink = last + 1, last + 1 + kept
    placed = tuple(
        channel
        if channel.output is None
        else replace(channel, target_stage=outbox if channel.output in exactly_once else sink)
        for channel in channels
    )
    return placed, outbox if kept else None


def _assign_stages(graph: ApplicationGraph) -> dict[str, int]:
    least = {op.id: int(op.needs_task) for op in graph.operators}
    stage_of = _earliest_stages(graph, least)
    written = {spec.name for spec in graph.written_stores}  # what is only read may be read in any stage
    shared = {store: ids for store, ids in graph.store_users().items() if len(ids) > 1 and store in written}
    _check_stores(graph, stage_of, shared)
    while moved := _to_the_last_stage(stage_of, shared):
        if max(moved.values()) > len(graph.operators):
            raise _stores_in_a_circle(shared)
        least |= moved
        stage_of = _earliest_stages(graph, least)
    return stage_of


def _earliest_stages(graph: ApplicationGraph, least: Mapping[str, int]) -> dict[str, int]:
    """The first stage that all messages of each operator can reach, and not before the one in `least`."""
    stage_of: dict[str, int] = {}
    exits: dict[str, int] = {}
    for op in graph.operators:
        stage_of[op.id] = max([least[op.id], *(exits[up] for up in op.upstream)])
        exits[op.id] = stage_of[op.id] + op.changes_key
    return stage_of


def _to_the_last_stage(stage_of: Mapping[str, int], shared: Mapping[str, list[str]]) -> dict[str, int]:
    """The operators that must run later, because another one that uses the same store does; with the stage."""
    moved: dict[str, int] = {}
    for ids in shared.values():
        last = max(stage_of[each] for each in ids)
        for each in ids:
            if stage_of[each] < last:
                moved[each] = max(last, moved.get(each, 0))
    return moved


def _check_stores(graph: ApplicationGraph, stage_of: Mapping[str, int], shared: Mapping[str, list[str]]) -> None:
    tables = [spec.name for spec in graph.stores if spec.kind == "table"]
    for store, ids in shared.items():
        for first in ids:
            later = [each for each in ids if each in _behind_partition_by(graph, first)]
            if later:
                raise _store_of_two_stages(store, store in tables, ids, later, stage_of)
    unused = [spec.name for spec in graph.stores if spec.name not in graph.store_users()]
    side = {spec.name for spec in graph.side_stores}
    for table in (name for name in unused if name in tables):
        write = "" if table in side else "write it with .send_to(table), "
        raise ConfigError(
            f"table `{table}` is declared but no operator uses it: {write}read it with .join_table(table, ...), or "
            "name it in process(..., stores=[...])"
        )
    if unused:
        names = listed([f"`{name}`" for name in unused])
        what = f"store {names} is" if len(unused) == 1 else f"stores {names} are"
        them = "it" if len(unused) == 1 else "them"
        raise ConfigError(f"{what} declared but no operator uses {them}: name {them} in process(..., stores=[...])")


def _behind_partition_by(graph: ApplicationGraph, first: str) -> set[str]:
    """The operators that get results of the operator `first` in a later stage."""
    reached, behind = {first}, set[str]()
    for op in graph.operators:
        if reached.intersection(op.upstream):
            reached.add(op.id)
        if any(up in behind or (up in reached and graph.operator(up).changes_key) for up in op.upstream):
            behind.add(op.id)
    return behind


def _store_of_two_stages(
    store: str, is_table: bool, ids: list[str], later: list[str], stage_of: Mapping[str, int]
) -> ConfigError:
    where = ", ".join(f"`{each}` (stage {stage_of[each]})" for each in ids)
    if not is_table:
        return ConfigError(
            f"store `{store}` is used by operators in different stages: {where}. A store belongs to one stage: "
            "give each its own store, or put the operators after the same partition_by"
        )
    names = listed([f"`{each}`" for each in later])
    return ConfigError(
        f"table `{store}` is used by operators in different stages: {where}. A table belongs to one stage, and a "
        f"partition_by is between these operators: declare a second table for {names}, and send to both what they need"
    )


def _stores_in_a_circle(shared: Mapping[str, list[str]]) -> ConfigError:
    names = listed([f"`{store}` ({', '.join(ids)})" for store, ids in shared.items()])
    return ConfigError(
        f"the tables or stores {names} cannot each belong to one stage of the job, because each has an operator that "
        "follows a partition_by behind an operator of another. Declare a separate one for some of these operators"
    )


class _Channels:
    """Collects channels and numbers them."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []

    def connect(self, source: OperatorSpec, target: OperatorSpec, stage_of: dict[str, int]) -> None:
        a, b = stage_of[source.id], stage_of[target.id]
        by_key = source.changes_key
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
                raw=source.is_input and not isinstance(source.value_serde, ColumnSerde),
            )
        )

    def to_output(self, name: str, source: str, stage: int, output: OutputSpec, routing: Routing | None = None) -> None:
        self._add(
            lambda number: Channel(
                number,
                name,
                source,
                stage,
                (),
                _LATER,
                routing or _to_output(output.stream, stage),
                output.key_serde,
                output.value_serde,
                output=output.stream,
            )
        )

    def _add(self, make: Callable[[int], Channel]) -> None:
        self.channels.append(make(len(self.channels)))


def _to_output(stream: SystemStream, stage: int) -> Routing:
    """The routing of a stage's messages to an output.

    The rows of a DataFrame have no order, so they stay in their task: without an exchange, a batch has a Spark stage
    less. Stage 0 of a query runs where its rows are, and not where its tasks are.
    """
    return Routing.TASK if stream.system == QUERY_SYSTEM and stage else Routing.OUTPUT


def intermediate_output(reader: IntermediateSpec) -> OutputSpec:
    return OutputSpec(reader.stream, reader.key_serde, IntermediateMessageSerde(reader.value_serde))


def _connect_outputs(
    graph: ApplicationGraph, edges: _Channels, stage_of: dict[str, int], outputs: dict[SystemStream, OutputSpec]
) -> None:
    """A channel for each send_to and each intermediate stream; and for each output no send_to names, one from every
    task that may send to it."""
    through = {op.stream: intermediate_output(op) for op in graph.intermediates}
    for op in graph.operators:
        output = op.sent_to
        if output in through:
            edges.to_output(op.id, op.id, stage_of[op.id], through[output], Routing.THROUGH)
        elif output is not None:
            edges.to_output(op.id, op.id, stage_of[op.id], _of_rows(outputs[output], op.value_serde))
    for op in graph.operators:
        if op.sends:
            for stream, spec in outputs.items():
                edges.to_output(f"{op.id}=>{stream}", op.id, stage_of[op.id], spec)


def _of_rows(output: OutputSpec, value: Serde[Any]) -> OutputSpec:
    """The output of a stream with these values. Rows of a schema become JSON by the types of their columns."""
    by_type = type(output.value_serde) is Json and isinstance(value, Columns)
    return replace(output, value_serde=value) if by_type else output


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
        shuffled=any(c.routing is not Routing.TASK for c in incoming),
    )
