"""An operator in general, with the questions that planners ask it and the usual answers. And a whole application, with
what it begins and ends with: operators that read streams, the one that merges them, outputs, and operators that
nothing follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.ssp import StreamPattern, SystemStream
from penstock.api.task_context import MessageCollector, TaskCoordinator
from penstock.api.time.firing import Ascending, WatermarkPolicy
from penstock.base.application_code import Callback, methods
from penstock.errors import ConfigError
from penstock.graph.event_time import EventTimeOrder, stores_of
from penstock.graph.stores import SideInputs, StoreSpec

Use: TypeAlias = frozenset[str] | None
"""Names of columns; None: all of them, because code of the application or a stream gets whole rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """An operator: its stable id, the operators it reads, the serdes of its output, and the stores it uses.

    Planners ask it what it does, and know no kind of operator: a new kind overrides the answers in which it differs.
    """

    operator: ClassVar[str] = ""
    """The class that runs it, as `module:Class`: the graph knows no operator, and a new one is in no table."""
    needs_task: ClassVar[bool] = False
    """It runs in a task's container, which has stores and tasks of the application."""
    changes_key: ClassVar[bool] = False
    """Its output belongs to the task that owns the new key, and therefore leaves the stage."""
    sends: ClassVar[bool] = False
    takes_order: ClassVar[bool] = False
    """It can be declared with an `ordering`."""
    waits_as_columns: ClassVar[bool] = False
    """With an `ordering`, its messages wait as columns, and come as such."""
    hands_on: ClassVar[bool] = True
    """Its results are messages for the operators that follow it, and nothing else: without one they are dropped."""
    is_input: ClassVar[bool] = False
    """Its messages come from a stream, as bytes that another stage may decode."""
    spreads_keys: ClassVar[bool] = False
    """Its messages go to the tasks that own their new keys, at once or through a durable stream."""
    gives_keys: ClassVar[bool] = False
    """Its messages have keys although those that it gets have none. A task may give some, and is taken to do so."""
    reads_shared_stores: ClassVar[bool] = False
    """It may have a store that every task has as a whole, although its messages have no keys."""

    id: str
    upstream: tuple[str, ...]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stores: tuple[str, ...] = ()
    ordering: EventTimeOrder | None = None
    """Its messages wait in one of its stores, and come by event time. None: they come as they are read."""
    renamed_from: str | None = None
    """The id that it had when its state was made, if that was another one."""

    @property
    def state_id(self) -> str:
        """The id that its stores are named after, and that checkpoints have as the user of other stores."""
        return self.renamed_from or self.id

    @property
    def input_stream(self) -> SystemStream | None:
        """The input of the application that it reads."""
        return None

    @property
    def declared_stream(self) -> SystemStream | StreamPattern | None:
        """The input that it is declared to read, or the pattern of its name."""
        return None

    @property
    def fed_by(self) -> tuple[str, ...]:
        """The operators whose messages it gets, at once or through a durable stream."""
        return self.upstream

    @property
    def sent_to(self) -> SystemStream | None:
        """The output that every one of its messages goes to."""
        return None

    @property
    def works_by_key(self) -> bool:
        """True if it keeps or finds something under the keys of its messages."""
        return False

    @property
    def without_keys(self) -> str:
        """The way to declare it for messages without keys, for an error; empty if there is none."""
        return ""

    @property
    def keeps_offsets(self) -> bool:
        """True if its messages have the offsets with which inputs have them, however batches are cut."""
        return not self.needs_task

    @property
    def writes_table(self) -> str | None:
        """The table to which its messages go."""
        return None

    @property
    def reads_table(self) -> str | None:
        """The table that it only reads, under the keys of its messages."""
        return None

    @property
    def waits_for_table(self) -> str | None:
        """The table whose writers hold back its watermark."""
        return None

    @property
    def sides(self) -> tuple[str, ...]:
        """The operators whose messages it joins with each other, the left one first; empty if it joins none."""
        return ()

    @property
    def deleted_stores(self) -> tuple[str, ...]:
        """Stores that it may have had before: a start drops them."""
        return ()

    @property
    def uses_time(self) -> bool:
        """True if event times, watermarks and the end of stream matter to it."""
        return False

    @property
    def has_end(self) -> bool:
        """True if it may do something at the end of the stream, without time."""
        return False

    @property
    def is_timed(self) -> bool:
        """True if it waits for event time, or its messages do."""
        return self.uses_time or self.ordering is not None

    def without_order(self) -> OperatorSpec:
        """The operator that takes its messages as they come."""
        waiting = stores_of(self.ordering)
        return replace(self, ordering=None, stores=tuple(name for name in self.stores if name not in waiting))

    @property
    def order_matters(self) -> str:
        """The reason why its results depend on the order in which the messages of a key come; empty if they do not,
        or it is not known."""
        return ""

    def columns_read(self, passed_on: Use) -> Use:
        """The columns that it needs of the rows that it gets, if `passed_on` is needed of those that it emits."""
        return None

    @property
    def may_get_partial(self) -> bool:
        """True if states may come to it in the place of messages that were added up before (partial aggregates)."""
        return False

    def callbacks(self) -> Iterator[Callback]:
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec(OperatorSpec):
    """Reads a stream."""

    operator = "penstock.runtime.operators.elementwise:Input"
    is_input = True

    stream: SystemStream
    timestamp: Callable[[Any], int] | None = None
    """The event time of a value, in epoch milliseconds; None: the message's own timestamp."""
    watermark: WatermarkPolicy | None = None
    """None: the event times of a partition never fall."""
    pattern: StreamPattern | None = None
    """The pattern that found the stream; None: the application names the stream."""

    @property
    def input_stream(self) -> SystemStream:
        return self.stream

    @property
    def declared_stream(self) -> SystemStream:
        return self.stream

    @property
    def uses_time(self) -> bool:
        return self.timestamp is not None or self.watermark is not None

    @property
    def watermark_policy(self) -> WatermarkPolicy:
        return Ascending() if self.watermark is None else self.watermark

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("timestamp", self.timestamp)
        yield from methods(self.watermark_policy, ("watermark",))


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSpec(OperatorSpec):
    """The inputs whose names a pattern matches, before a start knows them."""

    pattern: StreamPattern
    input: InputSpec
    """An input of the pattern, but for its stream."""

    @property
    def declared_stream(self) -> StreamPattern:
        return self.pattern

    @property
    def uses_time(self) -> bool:
        return self.input.uses_time

    def callbacks(self) -> Iterator[Callback]:
        return self.input.callbacks()

    def with_inputs(self, streams: Sequence[SystemStream]) -> tuple[OperatorSpec, ...]:
        """The inputs, and the operator that merges them in place of this one."""
        inputs = tuple(
            replace(
                self.input,
                id=f"{self.id}.{stream.stream}",
                stream=stream,
                key_serde=self.key_serde.for_stream(stream.stream, "key"),
                value_serde=self.value_serde.for_stream(stream.stream, "value"),
            )
            for stream in streams
        )
        first, upstream = inputs[0], tuple(op.id for op in inputs)
        merged = MergeSpec(
            id=self.id, upstream=upstream, key_serde=first.key_serde, value_serde=first.value_serde, stores=self.stores
        )
        return (*inputs, merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateSpec(OperatorSpec):
    """Reads the messages that an operator wrote to a durable intermediate stream in batches that have ended."""

    operator = "penstock.runtime.operators.elementwise:Intermediate"
    is_input = True
    gives_keys = True

    stream: SystemStream
    writer: str
    timestamp: None = None
    """The event times are the messages' own timestamps."""

    @property
    def fed_by(self) -> tuple[str, ...]:
        return (self.writer,)

    @property
    def keeps_offsets(self) -> bool:
        return False


SourceSpec: TypeAlias = InputSpec | IntermediateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSpec(OperatorSpec):
    """Merges several streams."""

    operator = "penstock.runtime.operators.elementwise:Merge"


SinkFunction: TypeAlias = Callable[[Any, MessageCollector, TaskCoordinator], None]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """A declared output stream and its serdes."""

    stream: SystemStream
    key_serde: Serde[Any]
    value_serde: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec(OperatorSpec):
    """A function called for each message; nothing follows it."""

    operator = "penstock.runtime.operators.elementwise:Sink"
    hands_on = False
    sends = True

    function: SinkFunction

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function", self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToSpec(OperatorSpec):
    """Writes each message to an output stream."""

    operator = "penstock.runtime.operators.elementwise:SendTo"
    hands_on = False

    output: SystemStream

    @property
    def sent_to(self) -> SystemStream:
        return self.output


@dataclass(frozen=True, slots=True)
class ApplicationGraph:
    """A whole application: operators in the order they were made (upstream first), stores, outputs."""

    name: str
    operators: tuple[OperatorSpec, ...]
    stores: tuple[StoreSpec, ...]
    outputs: tuple[OutputSpec, ...]

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return tuple(op for op in self.operators if isinstance(op, InputSpec))

    @property
    def unfollowed(self) -> tuple[OperatorSpec, ...]:
        """The operators whose results nothing takes: they are dropped."""
        followed = {up for op in self.operators for up in op.upstream}
        return tuple(op for op in self.operators if op.hands_on and op.id not in followed)

    @property
    def patterns(self) -> tuple[PatternSpec, ...]:
        """The inputs of patterns, which a start has to find."""
        return tuple(op for op in self.operators if isinstance(op, PatternSpec))

    @property
    def intermediates(self) -> tuple[IntermediateSpec, ...]:
        return tuple(op for op in self.operators if isinstance(op, IntermediateSpec))

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """All operators that read a stream: inputs, then durable intermediate streams. Packets use their indices."""
        return self.inputs + self.intermediates

    def parts(self) -> tuple[frozenset[str], ...]:
        """The operators that a batch can bring to their end together, in the order in which a drain does so. The first
        part follows the inputs; the followers of a durable intermediate stream are one part after its writer. A
        temporal join is in no earlier part than the writers of its table."""
        part, sources = dict[str, int](), self.time_sources()
        for op in self.operators:
            before = [part[op.writer] + 1] if isinstance(op, IntermediateSpec) else [part[up] for up in sources[op.id]]
            part[op.id] = max(before, default=0)
        return tuple(frozenset(op for op in part if part[op] == number) for number in range(max(part.values()) + 1))

    @property
    def uses_time(self) -> bool:
        """True if event times and watermarks are kept: an application that does not use them does not pay for them."""
        return any(op.is_timed for op in self.operators)

    def time_sources(self) -> dict[str, tuple[str, ...]]:
        """By operator, the operators whose watermarks hold it back: those that it reads, and the writers of a temporal
        join's table."""
        writers: dict[str, list[str]] = {}
        for op in self.operators:
            if op.writes_table is not None:
                writers.setdefault(op.writes_table, []).append(op.id)
        return {
            op.id: (*op.upstream, *(() if op.waits_for_table is None else writers.get(op.waits_for_table, ())))
            for op in self.operators
        }

    def in_order_of_time(self) -> ApplicationGraph:
        """The same graph with every operator after those whose watermarks hold it back. Raises ConfigError if there is
        a circle."""
        sources, order, waiting = self.time_sources(), dict[str, OperatorSpec](), list[str]()
        sources |= {op.id: (op.writer,) for op in self.intermediates}

        def place(op_id: str) -> None:
            if op_id in order:
                return
            if op_id in waiting:
                circle = ", ".join(f"`{each}`" for each in waiting[waiting.index(op_id) :])
                raise ConfigError(
                    f"the temporal join `{op_id}` would wait for itself: what it emits is written to its own table "
                    f"({circle}). Send it to another table"
                )
            waiting.append(op_id)
            for source in sources[op_id]:
                place(source)
            waiting.remove(op_id)
            order[op_id] = self.operator(op_id)

        for op in self.operators:
            place(op.id)
        return replace(self, operators=tuple(order.values()))

    def replacing(self, operators: Mapping[str, Sequence[OperatorSpec]]) -> ApplicationGraph:
        """The same graph with others in place of these operators, by id."""
        return replace(self, operators=tuple(each for op in self.operators for each in operators.get(op.id, (op,))))

    def operator(self, op_id: str) -> OperatorSpec:
        return next(op for op in self.operators if op.id == op_id)

    @property
    def written_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that the job writes, which are in checkpoints."""
        return tuple(spec for spec in self.stores if spec.side is None)

    @property
    def side_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that the job only reads, because side inputs or a pushed table fill them."""
        return tuple(spec for spec in self.stores if spec.side is not None)

    def side_streams(self) -> dict[SystemStream, list[StoreSpec]]:
        """Side input → the stores that it fills."""
        found: dict[SystemStream, list[StoreSpec]] = {}
        for spec in self.stores:
            if isinstance(spec.side, SideInputs):
                for each in spec.side.streams:
                    found.setdefault(each.stream, []).append(spec)
        return found

    @property
    def has_end(self) -> bool:
        """True if the end of the stream matters to it: a run that reaches the end has a last batch that says so."""
        return self.uses_time or any(op.has_end for op in self.operators)

    def store_users(self) -> dict[str, list[str]]:
        """Store -> the ids of the operators that use it, in order."""
        users: dict[str, list[str]] = {}
        for op in self.operators:
            for store in op.stores:
                users.setdefault(store, []).append(op.id)
        return users

    def state_ids(self) -> dict[str, str]:
        """Operator → the id that it had when its state was made, where that was another one."""
        return {op.id: op.renamed_from for op in self.operators if op.renamed_from is not None}
