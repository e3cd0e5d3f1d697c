"""The declarations of stores and tables, and of what fills those that the job only reads: side inputs, or a program
that pushes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from penstock.api.key_state import list_keys
from penstock.api.serdes import Bytes, ColumnSerde, Json, Serde, String, Tuple
from penstock.api.side_inputs import (
    ProcessorFunction,
    PushedFormat,
    PushedTable,
    SideInput,
    SideInputsProcessor,
    SideInputsProcessorFactory,
)
from penstock.api.ssp import SystemStream
from penstock.api.store import Table
from penstock.base.application_code import Callback, check_all, methods
from penstock.base.wording import Duration, listed, milliseconds
from penstock.errors import ConfigError
from penstock.graph.event_time import VersionKey, VersionValue
from penstock.graph.serdes import declared, side_input_place, store_place, table_place
from penstock.graph.specs import OperatorSpec
from penstock.graph.stores import (
    OPERATOR_STORES,
    OperatorBytes,
    OperatorKind,
    Side,
    SideInputs,
    SideStream,
    StoreSpec,
    TableSpec,
    TimeToLive,
    TtlFrom,
    with_layout,
)

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


NAME_RULE = "a name holds `a` to `z`, `A` to `Z`, digits, `_`, `-` and `.` only, and begins with neither `-` nor `.`"


def is_name(text: str) -> bool:
    """True if an operator, a store or an application can have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(kind: str, name: str) -> str:
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


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class SideDeclaration:
    """The source of a store that the job only reads, as the application gave it. Exactly one of `side_inputs` and
    `pushed` is None."""

    side_inputs: tuple[str | SideInput, ...] | None
    processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None
    broadcast: bool
    pushed: PushedTable | None

    @classmethod
    def of(
        cls,
        what: str,
        side_inputs: Sequence[str | SideInput] | None,
        processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None,
        broadcast: bool,
        pushed: PushedTable | None,
    ) -> SideDeclaration | None:
        """None if the job writes the store. Raises ConfigError, naming `what`, if the arguments contradict each
        other."""
        if side_inputs is not None and pushed is not None:
            raise ConfigError(
                f"{what}: side_inputs and pushed exclude each other: either streams fill it, or a table that somebody "
                "else writes"
            )
        if not isinstance(broadcast, bool):
            raise ConfigError(f"{what}: broadcast is True or False, not {broadcast!r}")
        _check_processor(what, processor)
        if pushed is not None:
            if processor is not None:
                raise ConfigError(f"{what}: a processor makes entries of the messages of side inputs; pushed has none")
            if broadcast:
                raise ConfigError(f"{what}: for a pushed table, write pushed=ps.PushedTable(..., broadcast=True)")
            return cls(None, None, False, pushed)
        if side_inputs is None:
            given = "a processor" if processor is not None else "broadcast=True"
            if processor is not None or broadcast:
                raise ConfigError(
                    f"{what}: {given} is for a store that streams fill: name them, as in "
                    'side_inputs=["local.planes"]. Or name them in the configuration, as `stores.<name>.side.inputs`, '
                    "and the processor as `stores.<name>.side.inputs.processor.factory`"
                )
            return None
        if isinstance(side_inputs, str | SideInput):
            raise ConfigError(f"{what}: side_inputs is a list: side_inputs=[{side_inputs!r}]")
        return cls(tuple(side_inputs), processor, broadcast, None)

    def checked(self, what: str, key: Serde[Any], value: Serde[Any]) -> Side:
        """The checked source. Streams that declare no serdes have these. Raises ConfigError, naming `what`."""
        if self.pushed is not None:
            pushed = check_pushed(what, self.pushed)
            return replace(pushed, path=os.fspath(pushed.path), stream_key=key)
        streams = [_stream(what, each, key, value) for each in self.side_inputs or ()]
        return SideInputs(check_streams(what, streams), self.processor, self.broadcast)


def check_streams(what: str, streams: Iterable[SideStream]) -> tuple[SideStream, ...]:
    """Raises ConfigError if there is no stream, or one is listed twice."""
    found = tuple(streams)
    if not found:
        raise ConfigError(f'{what}: side_inputs is empty: name a stream, as in side_inputs=["local.planes"]')
    names = [each.stream for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{what}: the side input `{name}` is listed twice")
    return found


def check_pushed(what: str, table: object) -> PushedTable:
    """Raises ConfigError if a field of the table is invalid."""
    if not isinstance(table, PushedTable):
        raise ConfigError(f"{what}: pushed is a ps.PushedTable(...), not {table!r}")
    if not isinstance(table.path, str | os.PathLike) or not os.fspath(table.path):
        raise ConfigError(f"{what}: the path of a pushed table is a folder or its URL, not {table.path!r}")
    if not _is_columns(table.key) or (table.value is not None and not _is_columns(table.value)):
        raise ConfigError(
            f"{what}: key and value of a pushed table are the name of a column, or a tuple of different names, not "
            f"{table.key!r} and {table.value!r}"
        )
    formats = get_args(PushedFormat)
    if table.format not in formats:
        raise ConfigError(f"{what}: the format of a pushed table is {listed(formats)}, not {table.format!r}")
    if table.check is not None and not callable(table.check):
        raise ConfigError(f"{what}: check of a pushed table is a function, not {table.check!r}")
    Callback("check of the pushed table", table.check).check(what)
    return table


def check_side_store(spec: StoreSpec) -> None:
    """Raise ConfigError if a store of this kind cannot be filled from outside."""
    if spec.side is None:
        return
    what, by = _named(spec), "side inputs" if isinstance(spec.side, SideInputs) else "a pushed table"
    if spec.has_versions:
        raise ConfigError(
            f"{what}: history_ms is for a table that the job writes with send_to, in the order of event times; this "
            f"one is filled by {by}, without a watermark. Leave history_ms out, or read the stream as an input and "
            "send it to the table"
        )
    if spec.ttl is not None:
        raise ConfigError(
            f"{what}: ttl_ms is for a store that the job writes; the entries of this one come and go with {by}. Leave "
            "ttl_ms out"
        )


def read_only(spec: StoreSpec) -> str:
    if isinstance(spec.side, PushedTable):
        return (
            f"{_named(spec)} is filled by the pushed table `{spec.side.path}` and is read-only: push a new version of "
            "it, or use another store for what the job writes"
        )
    streams = listed([f"`{each.stream}`" for each in spec.side.streams]) if spec.side else "nothing"
    return (
        f"{_named(spec)} is filled by its side inputs {streams} and is read-only: write to these streams, or use "
        "another store for what the job writes"
    )


def side_input_of(stores: Iterable[str]) -> str:
    """A side input's name in an error: it takes no startpoint."""
    return f"a side input of store {listed([f'`{store}`' for store in stores])}, which has no position in a checkpoint"


def _named(spec: StoreSpec) -> str:
    return f"{spec.kind} `{spec.name}`"


def _is_columns(given: object) -> bool:
    names = given if isinstance(given, tuple) else (given,)
    return bool(names) and all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)


def _check_processor(what: str, processor: object) -> None:
    if isinstance(processor, type):
        raise ConfigError(f"{what}: processor is an object or a function, not the class {processor.__name__}: make one")
    known = isinstance(processor, SideInputsProcessorFactory) or callable(getattr(processor, "process", processor))
    if processor is not None and not known:
        raise ConfigError(
            f"{what}: processor is a function of a message and the store, an object with such a method `process`, or a "
            f"SideInputsProcessorFactory, not {processor!r}"
        )
    check_all(methods(processor, ("get_side_inputs_processor",), yielding=("process",)), what)
    Callback("the processor", processor, may_yield=True).check(what)


def _stream(what: str, given: object, key: Serde[Any], value: Serde[Any]) -> SideStream:
    if not isinstance(given, str | SideInput):
        raise ConfigError(f"{what}: a side input is the name of a stream or a ps.SideInput(...), not {given!r}")
    side = given if isinstance(given, SideInput) else SideInput(given)
    name = SystemStream.parse(side.stream)
    place = side_input_place(name)
    key = place.serde("key", side.key, key).for_keys().for_stream(name.stream, "key")
    return SideStream(name, key, place.serde("value", side.value, value).for_stream(name.stream, "value"))


class StoreDeclarations:
    """The stores and tables of an application: each is checked when it is declared, and where it is used."""

    def __init__(self, name: str) -> None:
        """`name` is the application's. Raises ConfigError if it is malformed."""
        self.name = check_name("application", name)
        self._stores: dict[str, StoreSpec] = {}
        self._tables: dict[str, Table] = {}
        self._renamed: dict[str, str] = {}
        """Operator → the id that it had when its state was made, where that was another one."""

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
        check_name(kind, name)
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
