"""The stores of an application, as values, and the names and layouts of stores that belong to one operator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from penstock.api.serdes import Bytes, Serde
from penstock.api.side_inputs import ProcessorFunction, PushedTable, SideInputsProcessor, SideInputsProcessorFactory
from penstock.api.ssp import SystemStream

TtlFrom: TypeAlias = Literal["write", "access"]


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """The time for which entries live after their last write, or their last access."""

    ms: int
    since: TtlFrom = "write"


@dataclass(frozen=True, slots=True)
class SideStream:
    """A side input as the store has it: a stream and its serdes."""

    stream: SystemStream
    key_serde: Serde[Any]
    value_serde: Serde[Any]


@dataclass(frozen=True, slots=True)
class SideInputs:
    """The streams that fill a store, and the way from their messages to entries."""

    streams: tuple[SideStream, ...]
    processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None = None
    """None: each message is an entry as it is."""
    broadcast: bool = False
    """Every task has everything; otherwise task i has the messages of partition i."""


Side: TypeAlias = SideInputs | PushedTable


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A declared store: its name, its serdes, and the time to live of its entries. Every task has a separate
    instance."""

    kind: ClassVar[str] = "store"
    """The word for it in texts, and the method of an application that declares it."""
    is_shared: ClassVar[bool] = False
    """Any operator may use it, so a checkpoint does not record which ones do."""

    name: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    ttl: TimeToLive | None = None
    side: Side | None = None
    """The source that fills it; the job then only reads it. None: the job writes it."""
    by_column: bool = False
    """An operator reads and writes many of its keys at once."""
    writes_once: bool = False
    """Each key is written once, and then deleted once. One that comes and goes between two commits is in neither."""

    @property
    def has_versions(self) -> bool:
        """True if it has an entry for each version of a value, under (key, event time)."""
        return False


@dataclass(frozen=True, slots=True)
class TableSpec(StoreSpec):
    """The store of a table."""

    kind = "table"
    is_shared = True

    history_ms: int | None = None

    @property
    def has_versions(self) -> bool:
        return self.history_ms is not None


OPERATOR_STORES = (".window", ".join", ".timers", ".aggregate", ".in-order")
"""Endings of the names of stores that belong to one operator: `<operator id>.window`."""
WAITING_STORES = tuple(ending for ending in OPERATOR_STORES if ending != ".aggregate")
"""The endings of stores in which something waits for its time. The totals of an aggregate wait for nothing: neither a
drain nor the end of a stream sends them, so both keep them."""


def is_numbered(operator: str) -> bool:
    """True if an id is like those of operators without one, such as `filter-1`: their kind and a number."""
    return re.fullmatch(r".+-[0-9]+", operator) is not None


def own_stores(operators: Iterable[str]) -> frozenset[str]:
    """Every store that could belong to one of these operators alone. What a task declares is not among them."""
    return frozenset(f"{operator}{kind}" for operator in operators for kind in OPERATOR_STORES)


def waiting_stores(operators: Iterable[str]) -> frozenset[str]:
    """The stores of these operators in which something may wait."""
    return frozenset(store for store in own_stores(operators) if store.endswith(WAITING_STORES))


OperatorKind: TypeAlias = Literal[
    "window", "join", "temporal-join", "timers", "versions", "aggregate", "order", "column-order"
]

STORE_LAYOUTS: dict[OperatorKind, int] = {
    "window": 1,
    "join": 1,
    "temporal-join": 1,
    "timers": 1,
    "versions": 1,
    "aggregate": 1,
    "order": 1,
    "column-order": 1,
}
"""The number of the layout in which operators of a kind write their stores.

Raise it with each change of the entries, their order or their meaning: a start refuses stores of another layout, which
would be read wrongly. Their writers are in `runtime/windows`, `runtime/joins`,
`runtime/operators/event_time.py`, `runtime/timers.py`, `runtime/operators/tables.py`, `runtime/order.py`,
`runtime/order_columns.py`, `runtime/operators/column_aggregate.py` and `runtime/operators/column_processor.py`.
"""
_LAYOUT = ":layout="
_NUMBERED = re.compile(rf"(.*){_LAYOUT}([0-9]+)")


def with_layout(kind: OperatorKind, definition: str) -> str:
    """The definition with the number of the layout. Layout 1 is not named: definitions had no number at first.

    Example:
        >>> with_layout("timers", "timers(string)")
        'timers(string)'
    """
    number = STORE_LAYOUTS[kind]
    return definition if number == 1 else f"{definition}{_LAYOUT}{number}"


def layout_of(definition: str) -> int:
    """The number of the layout from a definition.

    Example:
        >>> layout_of("timers(string)"), layout_of("timers(string):layout=2")
        (1, 2)
    """
    found = _NUMBERED.fullmatch(definition)
    return 1 if found is None else int(found[2])


class OperatorBytes(Bytes):
    """The keys or values of a store that belongs to one operator, which alone knows their meaning."""

    def __init__(self, definition: str) -> None:
        self._definition = definition

    @property
    def name(self) -> str:
        return self._definition


_EXPIRES = "ttl-1"
"""The form of a store whose entries have a time to live. How long they live is no part of it."""
_LAYOUT_OF_ROWS = re.compile(r"(?:(?:value|list|map|columns)-[0-9]+|columns|avro)\(.*\)")
"""Rows: those of a state variable of PySpark, with its kind and the version of its form, or those of `ps.Columns`. Or
Avro, with all schemas that values have."""
_LAYOUT_OF_TIMERS = re.compile(r"timers(?:-[0-9]+)?\(")
"""Timers of a task, or of a processor of PySpark."""
_LAYOUT_OF_VERSIONS = re.compile(r"^version\((.*)\)$")
_REQUIRED = "!"


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The operators that use a store, its serdes by name, and whether its entries have a time to live.

    Example:
        >>> str(StoreLayout(("process-1",), "string", "json"))
        'process-1 string json'
        >>> StoreLayout.parse("process-1 string json ttl-1").expires
        True
    """

    operators: tuple[str, ...]
    key: str
    value: str
    expires: bool = False

    def __str__(self) -> str:
        text = f"{','.join(self.operators)} {self.key} {self.value}"
        return f"{text} {_EXPIRES}" if self.expires else text

    @classmethod
    def parse(cls, text: str) -> StoreLayout:
        """The layout from its text. The serdes of a text that has another form are `unknown`."""
        expires = text.endswith(f" {_EXPIRES}")
        parts = text.removesuffix(f" {_EXPIRES}").split(" ") if expires else text.split(" ")
        key, value = (parts[1], parts[2]) if len(parts) == 3 else ("unknown", "unknown")
        return cls(tuple(parts[0].split(",")), key, value, expires)

    @property
    def holds_timers(self) -> bool:
        """True if the entries are those of timers. Not every store `<operator id>.timers` has them: a table with a
        history keeps the times of its versions in one.

        Example:
            >>> StoreLayout.parse("remind bytes timers(string)").holds_timers
            True
            >>> StoreLayout.parse("rates-in bytes versions(string)").holds_timers
            False
        """
        return _LAYOUT_OF_TIMERS.match(self.value) is not None

    def adds_fields(self, before: StoreLayout) -> bool:
        """True if it is the layout from before with more fields at the end of its rows, or with one more schema of
        Avro. The store is read as it is: rows that were written without the fields have None there.

        Example:
            >>> old = StoreLayout(("p",), "key-1(user:string)", "value-1(n:bigint)")
            >>> StoreLayout(("p",), "key-1(user:string)", "value-1(n:bigint,total:double)").adds_fields(old)
            True
        """
        was, now = (_LAYOUT_OF_VERSIONS.sub(r"\1", value) for value in (before.value, self.value))
        same = replace(self, value=before.value) == before and _LAYOUT_OF_ROWS.fullmatch(was) is not None
        start = f"{was[:-1]},"
        return same and now.startswith(start) and _REQUIRED not in now[len(start) :]
