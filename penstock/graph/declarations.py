"""The declarations of an application so far: its operators, stores and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from penstock.api.expressions import Expression
from penstock.api.serdes import ColumnSerde, Json, Serde, String
from penstock.api.ssp import StreamPattern, SystemStream
from penstock.api.task import StreamTask
from penstock.api.time.firing import TIMERS, AtDrain, WatermarkPolicy, deaf_to_timers, discards
from penstock.base.application_code import check_all
from penstock.errors import ConfigError
from penstock.graph import event_time, specs
from penstock.graph.serdes import SerdePlace, input_place, output_place, process_place, timers_place
from penstock.graph.store_declarations import StoreDeclarations, check_name
from penstock.graph.stores import OperatorKind, is_numbered

_Spec = TypeVar("_Spec", bound=specs.OperatorSpec)


def may_end(task: Callable[[], StreamTask]) -> bool:
    """True if tasks made by `task` may define `on_end`. A function may always make such tasks."""
    return _may_define(task, "on_end")


def _may_define(task: object, method: str) -> bool:
    """True if tasks made by `task` may have a method of their own. A function may always make such tasks."""
    while isinstance(task, partial):
        task = task.func
    own = getattr(StreamTask, method)
    return not isinstance(task, type) or getattr(task, method, own) is not own


class Declarations(StoreDeclarations):
    """Checks each declaration when it is made. The methods of an application and of its streams add to it."""

    def __init__(self, name: str) -> None:
        """`name` is the application's. Raises ConfigError if it is malformed."""
        super().__init__(name)
        self._operators: dict[str, specs.OperatorSpec] = {}
        self._counters: Counter[str] = Counter()
        self._outputs: dict[SystemStream, specs.OutputSpec] = {}

    def __str__(self) -> str:
        inputs = [str(op.declared_stream) for op in self._operators.values() if op.declared_stream is not None]
        parts = {"inputs": inputs, "stores": self._stores, "outputs": map(str, self._outputs)}
        named = "; ".join(f"{kind} {', '.join(names)}" for kind, found in parts.items() if (names := list(found)))
        return f"{self.name}: {named or 'empty'}"

    def timers(
        self, op_id: str, place: SerdePlace, serde: object, task: object
    ) -> tuple[Serde[Any] | None, tuple[str, ...]]:
        """Add the store of an operator's timers, if it has any. Returns the serde of their keys, and the store. Raises
        ConfigError if `serde` is not a serde, or `task` makes tasks that take no timers."""
        if serde is None:
            return None, ()
        keys = place.serde("key", serde, String()).for_store_keys()
        if not _may_define(task, "on_timer"):
            raise deaf_to_timers(op_id)
        return keys, (self.own_store(op_id, TIMERS, "timers", f"timers({keys.name})".replace(" ", "")),)

    def ordering(
        self,
        op_id: str,
        sources: Sequence[specs.OperatorSpec],
        order: event_time.Order | None,
        late_to: SystemStream | None = None,
        *,
        by_column: bool = False,
    ) -> event_time.EventTimeOrder | None:
        """The declared order of an operator's messages, for which it adds a store. None: they come as they are read.
        Raises ConfigError if the order is none, or `late_to` is not an output."""
        if not event_time.check_order(order, late_to, f"operator `{op_id}`"):
            return None
        if late_to is not None:
            self.check_output(late_to)
        found = tuple(event_time.OrderedSource.of(op.id, op.key_serde, op.value_serde) for op in sources)
        kind: OperatorKind = "column-order" if by_column else "order"
        definition = event_time.order_definition(found, by_column=by_column)
        store = self.own_store(op_id, event_time.IN_ORDER, kind, definition, by_column=by_column, writes_once=True)
        return event_time.EventTimeOrder(store, found, late_to, self._keep_offsets(sources))

    def _keep_offsets(self, sources: Sequence[specs.OperatorSpec]) -> bool:
        """True if the offsets of messages are those with which inputs have them, and no batch changes which message
        has which."""
        left, seen = list(sources), set[str]()
        while left:
            op = left.pop()
            if not op.keeps_offsets:
                return False
            left += [self._operators[up] for up in op.upstream if up not in seen]
            seen.update(op.upstream)
        return True

    def output(self, stream: str, key: Serde[Any] | None, value: Serde[Any] | None) -> SystemStream:
        name = SystemStream.parse(stream)
        if name in self._outputs:
            raise ConfigError(f"output `{name}` is declared twice in application `{self.name}`")
        place = output_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        key, value = key.for_keys().for_stream(name.stream, "key"), value.for_stream(name.stream, "value")
        self._outputs[name] = specs.OutputSpec(name, key, value)
        return name

    def check_output(self, output: SystemStream) -> None:
        if output not in self._outputs:
            raise ConfigError(f"output `{output}` is not declared: use `app.output(...)`")

    def graph(self) -> specs.ApplicationGraph:
        """The declarations as plain values. Raises ConfigError if there is no input, a temporal join waits for itself,
        or a durable intermediate stream is an input or an output as well."""
        graph = specs.ApplicationGraph(
            self.name, tuple(self._operators.values()), tuple(self._stores.values()), tuple(self._outputs.values())
        )
        if not (graph.inputs or graph.patterns):
            raise ConfigError(f"application `{self.name}` has no input: add one with `app.input(...)`")
        taken = {op.stream: f"the input `{op.id}`" for op in graph.inputs} | dict.fromkeys(self._outputs, "an output")
        for op in graph.intermediates:
            if op.stream in taken:
                raise ConfigError(
                    f"the intermediate stream `{op.stream}` of `{op.writer}` is {taken[op.stream]} of the application "
                    "as well: choose a stream that nothing else uses"
                )
            taken[op.stream] = f"the intermediate stream of `{op.writer}`"
        return graph.in_order_of_time()

    def add(self, make: Callable[[str], _Spec], kind: str, op_id: str | None, renamed_from: str | None = None) -> _Spec:
        """Add the operator that `make` makes from its id: the given one, or one that is numbered by kind. Its state was
        made under the id `renamed_from`, if there is one. Raises ConfigError if an id is taken or malformed."""
        if op_id is None:
            self._counters[kind] += 1
            op_id = f"{kind}-{self._counters[kind]}"
        check_name("operator id", op_id)
        if op_id in self._operators:
            advice = ". Operators without an id are numbered: give the other one an id as well"
            raise ConfigError(
                f"operator id `{op_id}` is used twice in application `{self.name}`: ids are unique"
                f"{advice if is_numbered(op_id) else ''}"
            )
        self._note_state(op_id, renamed_from)
        spec = make(op_id)
        check_all(spec.callbacks(), f"operator `{op_id}`")
        if renamed_from is not None:
            spec = replace(spec, renamed_from=renamed_from)
        self._operators[op_id] = spec
        return spec

    def _note_state(self, op_id: str, renamed_from: str | None) -> None:
        """Note the id that the stores of an operator are named after. Raises ConfigError if another operator has it."""
        owner = next((op for op, old in self._renamed.items() if old == op_id), None)
        if owner is not None:
            raise ConfigError(
                f'operator `{owner}` has the state of `{op_id}` (renamed_from="{op_id}"): give the operator that is '
                f"`{op_id}` now another id"
            )
        if renamed_from is None:
            return
        check_name("operator id", renamed_from)
        if renamed_from in self._operators or renamed_from in self._renamed.values() or renamed_from == op_id:
            raise ConfigError(
                f'operator `{op_id}`: renamed_from="{renamed_from}" names an operator of the application, which has '
                "its own state. Name the id that this operator had before, and that none has now"
            )
        self._renamed[op_id] = renamed_from

    def reader_of(self, writer: specs.PartitionThroughSpec) -> specs.IntermediateSpec:
        """Add the operator that reads the stream that `writer` writes."""

        def make(i: str) -> specs.IntermediateSpec:
            return specs.IntermediateSpec(
                id=i,
                upstream=(),
                key_serde=writer.key_serde,
                value_serde=writer.value_serde,
                stream=writer.through,
                writer=writer.id,
            )

        return self.add(make, "through", f"{writer.id}.through")

    def input(
        self,
        stream: str,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        timestamp: Callable[[Any], int] | None,
        watermark: WatermarkPolicy | None,
        op_id: str | None,
        *,
        pattern: bool = False,
    ) -> specs.InputSpec | specs.PatternSpec:
        """Add an input. Raises ConfigError if it is declared already, or an argument is invalid."""
        matched = StreamPattern.parse(stream) if pattern else None
        name = SystemStream.parse(stream)
        declared_as = matched or name
        for op in self._operators.values():
            if op.declared_stream == declared_as:
                raise ConfigError(f"input `{name}` is declared twice in application `{self.name}`: reuse the first one")
        place = input_place(name)
        key = place.serde("key", key, String()).for_keys()
        value = place.serde("value", value, Json())
        if matched is None:
            key, value = key.for_stream(name.stream, "key"), value.for_stream(name.stream, "value")
        if timestamp is not None and not callable(timestamp):
            raise ConfigError(f"input `{name}`: timestamp is a function of the value, not {timestamp!r}")
        if isinstance(timestamp, Expression) and isinstance(value, ColumnSerde):
            timestamp.check_time(value.schema, f"input `{name}`: timestamp")
        is_class = isinstance(watermark, type)
        if watermark is not None and (is_class or not callable(getattr(watermark, "watermark", None))):
            raise ConfigError(
                f"input `{name}`: watermark is a policy such as BoundedOutOfOrderness(5_000), not {watermark!r}"
            )

        def make(i: str) -> specs.InputSpec | specs.PatternSpec:
            spec = specs.InputSpec(
                id=i,
                upstream=(),
                key_serde=key,
                value_serde=value,
                stream=name,
                timestamp=timestamp,
                watermark=watermark,
                pattern=matched,
            )
            return (
                spec
                if matched is None
                else specs.PatternSpec(id=i, upstream=(), key_serde=key, value_serde=value, pattern=matched, input=spec)
            )

        return self.add(make, "input", op_id)

    def process(
        self,
        upstream: Sequence[specs.OperatorSpec],
        task: Callable[[], StreamTask],
        stores: Iterable[str],
        op_id: str | None,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        timers: Serde[Any] | None = None,
        timers_at_drain: AtDrain = "fire",
        order: event_time.Order | None = None,
        late_to: SystemStream | None = None,
        renamed_from: str | None = None,
    ) -> specs.ProcessSpec:
        """Add a StreamTask. Raises ConfigError for a store that is not declared, for an invalid serde, for
        `timers_at_drain` that does not fit the timers, and for an order that does not exist."""
        names = self.check_stores(stores, "process()")
        for name in names:
            if name in self._tables and self._tables[name].history_ms is not None:
                raise ConfigError(
                    f"table `{name}` has history (history_ms): its store holds versions by event time, which a task "
                    "cannot keep in order. Write it with .send_to(table), read it with .join_table(table, ..., "
                    "as_of=True), or declare a second table without history for the task"
                )
        if not callable(task):
            raise ConfigError(f"process() takes a StreamTask class or a function that makes one, not {task!r}")

        def make(i: str) -> specs.ProcessSpec:
            place, default = process_place(f"operator `{i}`"), upstream[0].key_serde
            of_timers, own = self.timers(i, timers_place(i), timers, task)
            ordering = self.ordering(i, upstream, order, late_to)
            return specs.ProcessSpec(
                id=i,
                upstream=tuple(u.id for u in upstream),
                task=task,
                stores=names + own + event_time.stores_of(ordering),
                ordering=ordering,
                timers=of_timers,
                discards_timers=discards(timers_at_drain, timers, f"operator `{i}`"),
                ends=may_end(task),
                key_serde=default if key is None else place.serde("key", key, default).for_keys(),
                value_serde=place.serde("value", value, Json()),
            )

        return self.add(make, "process", op_id, renamed_from)
