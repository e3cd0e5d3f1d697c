"""The declarations of an application so far: its operators, stores and outputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.expressions import Expression
from penstock.api.key_state import list_keys
from penstock.api.serdes import Bytes, ColumnSerde, Json, Serde, String, Tuple
from penstock.api.ssp import StreamPattern, SystemStream
from penstock.api.store import Table
from penstock.api.task import StreamTask
from penstock.api.time.firing import TIMERS, AtDrain, WatermarkPolicy, deaf_to_timers, discards
from penstock.base.application_code import check_all
from penstock.base.wording import Duration, milliseconds
from penstock.errors import ConfigError
from penstock.graph.event_time import (
    IN_ORDER,
    EventTimeOrder,
    Order,
    OrderedSource,
    VersionKey,
    VersionValue,
    check_order,
    order_definition,
    stores_of,
)
from penstock.graph.serdes import (
    SerdePlace,
    declared,
    input_place,
    output_place,
    process_place,
    store_place,
    table_place,
    timers_place,
)
from penstock.graph.side_declarations import SideDeclaration, check_side_store, read_only
from penstock.graph.specs import (
    ApplicationGraph,
    InputSpec,
    IntermediateSpec,
    OperatorSpec,
    OutputSpec,
    PartitionThroughSpec,
    PatternSpec,
    ProcessSpec,
)
from penstock.graph.stores import (
    OPERATOR_STORES,
    OperatorBytes,
    OperatorKind,
    StoreSpec,
    TableSpec,
    TimeToLive,
    TtlFrom,
    with_layout,
)

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_Spec = TypeVar("_Spec", bound=OperatorSpec)


NAME_RULE = "a name holds `a` to `z`, `A` to `Z`, digits, `_`, `-` and `.` only, and begins with neither `-` nor `.`"


def is_name(text: str) -> bool:
    """True if an operator, a store or an application can have this name."""
    return _NAME.fullmatch(text) is not None


def _check_name(kind: str, name: str) -> str:
    if not is_name(name):
        raise ConfigError(f"{kind} `{name}`: {NAME_RULE}")
    return name


_LONGEST_TTL_MS = 10**15


def time_to_live(what: str, ttl_ms: Duration | None, since: TtlFrom) -> TimeToLive | None:
    """The declared time to live. Raises ConfigError, naming `what`, if it is invalid."""
    if since not in ("write", "access"):
        raise ConfigError(f'{what}: ttl_from is "write" or "access", not {since!r}')
    if ttl_ms is None:
        if since != "write":
            raise ConfigError(f'{what}: ttl_from="{since}" needs ttl_ms, the time to live in milliseconds')
        return None
    return TimeToLive(milliseconds(f"{what}: ttl_ms", ttl_ms, most=_LONGEST_TTL_MS), since)


def may_end(task: Callable[[], StreamTask]) -> bool:
    """True if tasks made by `task` may define `on_end`. A function may always make such tasks."""
    return _may_define(task, "on_end")


def _may_define(task: object, method: str) -> bool:
    """True if tasks made by `task` may have a method of their own. A function may always make such tasks."""
    while isinstance(task, partial):
        task = task.func
    own = getattr(StreamTask, method)
    return not isinstance(task, type) or getattr(task, method, own) is not own


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


class Declarations:
    """Checks each declaration when it is made. The methods of an application and of its streams add to it."""

    def __init__(self, name: str) -> None:
        """`name` is the application's. Raises ConfigError if it is malformed."""
        self.name = _check_name("application", name)
        self._operators: dict[str, OperatorSpec] = {}
        self._counters: Counter[str] = Counter()
        self._stores: dict[str, StoreSpec] = {}
        self._outputs: dict[SystemStream, OutputSpec] = {}
        self._tables: dict[str, Table] = {}
        self._renamed: dict[str, str] = {}
        """Operator → the id that it had when its state was made, where that was another one."""

    def __str__(self) -> str:
        inputs = [str(op.declared_stream) for op in self._operators.values() if op.declared_stream is not None]
        parts = {"inputs": inputs, "stores": self._stores, "outputs": map(str, self._outputs)}
        named = "; ".join(f"{kind} {', '.join(names)}" for kind, found in parts.items() if (names := list(found)))
        return f"{self.name}: {named or 'empty'}"

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(self._stores)

    def store(
        self,
        name: str,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        ttl: TimeToLive | None = None,
        side: SideDeclaration | None = None,
    ) -> None:
        self._check_new_store("store", name)
        place = store_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        filled = None if side is None else side.checked(place.name, key.for_keys(), value)
        spec = StoreSpec(name, key.for_store_keys(), value.for_store_values(), ttl, filled)
        check_side_store(spec)
        self._stores[name] = spec

    def list_state(self, name: str, key: Serde[Any] | None, value: Serde[Any] | None, ttl: TimeToLive | None) -> None:
        with _blaming(f"list state `{name}`"):
            keys = list_keys(store_place(name).serde("key", key, String()))
        self.store(name, keys, value, ttl)

    def map_state(
        self,
        name: str,
        key: Serde[Any] | None,
        map_key: Serde[Any] | None,
        value: Serde[Any] | None,
        ttl: TimeToLive | None,
    ) -> None:
        place = store_place(name)
        with _blaming(f"map state `{name}`"):
            keys = Tuple(place.serde("key", key, String()), place.serde("key", map_key, String()))
        self.store(name, keys, value, ttl)

    def _check_new_store(self, kind: str, name: str) -> None:
        _check_name(kind, name)
        if name.endswith(OPERATOR_STORES):
            raise ConfigError(f"{kind} `{name}`: this ending is for the stores of operators; choose another name")
        if name in self._stores:
            twice = "is declared twice" if (name in self._tables) == (kind == "table") else "is the name of a store"
            raise ConfigError(f"{kind} `{name}` {twice} in application `{self.name}`")

    def table(
        self,
        name: str,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        ttl: TimeToLive | None,
        history_ms: Duration | None,
        side: SideDeclaration | None = None,
    ) -> Table:
        self._check_new_store("table", name)
        place = table_place(name)
        key, value = place.serde("key", key, String()), place.serde("value", value, Json())
        stored = key.for_store_keys()
        versions_ms = None
        if history_ms is not None:
            versions_ms = milliseconds(f"table `{name}`: history_ms", history_ms, least=0)
            if ttl is not None:
                raise ConfigError(
                    f"table `{name}`: ttl_ms and history_ms exclude each other. A table with history keeps what is "
                    "valid; send None to it to delete a value"
                )
            stored, value = VersionKey(stored), VersionValue(value.for_store_values())
        filled = None if side is None else side.checked(place.name, key.for_keys(), value)
        spec = TableSpec(name, stored, value.for_store_values(), ttl, filled, history_ms=versions_ms)
        check_side_store(spec)
        self._stores[name] = spec
        self._tables[name] = table = Table(name, key.for_keys(), versions_ms)
        return table

    def check_table(self, table: Table, stream: OperatorSpec, what: str) -> None:
        """Raise ConfigError unless the table is of this application, and its keys are those of the stream. `what` is
        the method that is called."""
        if not isinstance(table, Table):
            raise ConfigError(f"{what} takes a table, which `app.table(...)` returns, not {table!r}")
        if self._tables.get(table.name) is not table:
            raise ConfigError(f"{what}: table `{table.name}` is of another application: use `app.table(...)`")
        if stream.key_serde.name != table.key_serde.name:
            raise ConfigError(
                f"{what}: the keys of `{stream.id}` are {declared(stream.key_serde)}, those of table `{table.name}` "
                f"{declared(table.key_serde)}. Equal keys must have equal bytes: declare the same serde with key= of "
                "app.table(...) and of app.input(...), .partition_by(...) or .process(...)"
            )

    def columns_of(self, table: Table, columns: Sequence[str], what: str) -> list[pa.Field]:
        """The columns of a table that a join adds. Raises ConfigError, which begins with `what`, if it has no such
        columns, or the job writes it."""
        spec = self._stores[table.name]
        if spec.side is None:
            raise ConfigError(
                f"{what}: columns= is for a table that is filled from outside (side inputs, or pushed). Messages and "
                f"writes of table `{table.name}` come in an order, one by one: give a function of both values"
            )
        if not isinstance(spec.value_serde, ColumnSerde):
            raise ConfigError(
                f"{what}: the values of table `{table.name}` are no rows of a schema: declare it with "
                f'app.table("{table.name}", value=ps.Columns(pa.schema([...])), ...), or give a function of both values'
            )
        schema = spec.value_serde.schema
        for name in columns:
            if name not in schema.names:
                raise ConfigError(
                    f"{what}: table `{table.name}` has no column `{name}`; it has {', '.join(schema.names)}"
                )
        return [schema.field(name) for name in columns]

    def check_written(self, table: Table, what: str = "") -> None:
        """Raise ConfigError, which begins with `what`, if the job cannot write the table because it is filled from
        outside."""
        spec = self._stores[table.name]
        if spec.side is not None:
            raise ConfigError(f"{what}{read_only(spec)}")

    def check_stores(self, stores: Iterable[str], what: str) -> tuple[str, ...]:
        """The names as a tuple. Raises ConfigError if one is not that of a declared store; `what` is the method that is
        called."""
        if isinstance(stores, str):
            raise ConfigError(f'stores="{stores}" is one string, but {what} takes a list of names: stores=["{stores}"]')
        names = tuple(stores)
        for name in names:
            if name not in self._stores:
                known = ", ".join(f"`{s}`" for s in self._stores) or "none"
                raise ConfigError(
                    f"store `{name}` is not declared; declared stores: {known}. Use `app.store(...)` first"
                )
        return names

    def use_by_column(self, stores: Iterable[str]) -> None:
        """Note that an operator uses many keys of these stores at once."""
        for name in stores:
            spec = self._stores[name]
            if spec.side is None and spec.ttl is None and isinstance(spec.value_serde, ColumnSerde):
                self._stores[name] = replace(spec, by_column=True)

    def state_id(self, op_id: str) -> str:
        """The id that the stores of an operator are named after: the one that it had when its state was made."""
        return self._renamed.get(op_id, op_id)

    def own_store(
        self,
        op_id: str,
        ending: str,
        kind: OperatorKind,
        definition: str,
        *,
        by_column: bool = False,
        writes_once: bool = False,
    ) -> str:
        """Add a store that belongs to one operator, which alone knows its bytes. A checkpoint records the definition, a
        text without spaces, with the number of the kind's layout: an operator with another definition or layout is
        refused the bytes."""
        name, values = f"{self.state_id(op_id)}{ending}", OperatorBytes(with_layout(kind, definition))
        self._stores[name] = StoreSpec(name, Bytes(), values, by_column=by_column, writes_once=writes_once)
        return name

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
        sources: Sequence[OperatorSpec],
        order: Order | None,
        late_to: SystemStream | None = None,
        *,
        by_column: bool = False,
    ) -> EventTimeOrder | None:
        """The declared order of an operator's messages, for which it adds a store. None: they come as they are read.
        Raises ConfigError if the order is none, or `late_to` is not an output."""
        if not check_order(order, late_to, f"operator `{op_id}`"):
            return None
        if late_to is not None:
            self.check_output(late_to)
        found = tuple(OrderedSource.of(op.id, op.key_serde, op.value_serde) for op in sources)
        kind: OperatorKind = "column-order" if by_column else "order"
        definition = order_definition(found, by_column=by_column)
        store = self.own_store(op_id, IN_ORDER, kind, definition, by_column=by_column, writes_once=True)
        return EventTimeOrder(store, found, late_to, self._keep_offsets(sources))

    def _keep_offsets(self, sources: Sequence[OperatorSpec]) -> bool:
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
        self._outputs[name] = OutputSpec(name, key, value)
        return name

    def check_output(self, output: SystemStream) -> None:
        if output not in self._outputs:
            raise ConfigError(f"output `{output}` is not declared: use `app.output(...)`")

    def graph(self) -> ApplicationGraph:
        """The declarations as plain values. Raises ConfigError if there is no input, a temporal join waits for itself,
        or a durable intermediate stream is an input or an output as well."""
        graph = ApplicationGraph(
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
        _check_name("operator id", op_id)
        if op_id in self._operators:
            numbered = re.fullmatch(rf"{kind}-[0-9]+", op_id)
            advice = ". Operators without an id are numbered: give the other one an id as well" if numbered else ""
            raise ConfigError(
                f"operator id `{op_id}` is used twice in application `{self.name}`: ids are unique{advice}"
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
        _check_name("operator id", renamed_from)
        if renamed_from in self._operators or renamed_from in self._renamed.values() or renamed_from == op_id:
            raise ConfigError(
                f'operator `{op_id}`: renamed_from="{renamed_from}" names an operator of the application, which has '
                "its own state. Name the id that this operator had before, and that none has now"
            )
        self._renamed[op_id] = renamed_from

    def reader_of(self, writer: PartitionThroughSpec) -> IntermediateSpec:
        """Add the operator that reads the stream that `writer` writes."""

        def make(i: str) -> IntermediateSpec:
            return IntermediateSpec(
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
    ) -> InputSpec | PatternSpec:
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

        def make(i: str) -> InputSpec | PatternSpec:
            spec = InputSpec(
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
                else PatternSpec(id=i, upstream=(), key_serde=key, value_serde=value, pattern=matched, input=spec)
            )

        return self.add(make, "input", op_id)

    def process(
        self,
        upstream: Sequence[OperatorSpec],
        task: Callable[[], StreamTask],
        stores: Iterable[str],
        op_id: str | None,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        timers: Serde[Any] | None = None,
        timers_at_drain: AtDrain = "fire",
        order: Order | None = None,
        late_to: SystemStream | None = None,
        renamed_from: str | None = None,
    ) -> ProcessSpec:
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

        def make(i: str) -> ProcessSpec:
            place, default = process_place(f"operator `{i}`"), upstream[0].key_serde
            of_timers, own = self.timers(i, timers_place(i), timers, task)
            ordering = self.ordering(i, upstream, order, late_to)
            return ProcessSpec(
                id=i,
                upstream=tuple(u.id for u in upstream),
                task=task,
                stores=names + own + stores_of(ordering),
                ordering=ordering,
                timers=of_timers,
                discards_timers=discards(timers_at_drain, timers, f"operator `{i}`"),
                ends=may_end(task),
                key_serde=default if key is None else place.serde("key", key, default).for_keys(),
                value_serde=place.serde("value", value, Json()),
            )

        return self.add(make, "process", op_id, renamed_from)
