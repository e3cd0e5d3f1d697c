"""Operators by event time, as values: joins of two streams, which `MessageStream.join` makes; the order in
which an operator takes its messages; and the entries of a table with history, one for each version of a key's value,
the latest first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

from penstock.api.serdes import ColumnSerde
from penstock.api.serdes.base import Serde
from penstock.api.serdes.values import Tuple
from penstock.api.ssp import SystemStream
from penstock.base.wording import Duration, milliseconds
from penstock.errors import ConfigError

JoinKind: TypeAlias = Literal["inner", "left", "right", "outer"]
"""The messages without a partner that are emitted too: none, those of the left stream, of the right one, or of both."""

Keep: TypeAlias = Literal["all", "newest"]
"""The messages of a key that wait for partners: all of the span, or the newest of each stream."""

JoinFunction: TypeAlias = Callable[[Any, Any], Any]

_LONGEST_MS = 2**60


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the two streams."""

    source: str
    """The id of the operator that emits its messages."""
    key_serde: Serde[Any]
    value_serde: Serde[Any]


@dataclass(frozen=True, slots=True)
class Join:
    """The rule by which messages of two streams join."""

    before_ms: int
    """The most by which a right partner may be earlier than a left message."""
    after_ms: int
    """The most by which a right partner may be later than a left message."""
    kind: JoinKind
    keep: Keep
    late_to: SystemStream | None

    @property
    def emits_left(self) -> bool:
        """True if left messages without a partner are emitted."""
        return self.kind in ("left", "outer")

    @property
    def emits_right(self) -> bool:
        """True if right messages without a partner are emitted."""
        return self.kind in ("right", "outer")


def join_of(
    within_ms: Duration | tuple[Duration, Duration], kind: JoinKind, keep: Keep, late_to: SystemStream | None
) -> Join:
    """The join that these arguments of `MessageStream.join` describe. Raises ConfigError."""
    given = within_ms if isinstance(within_ms, tuple) else (within_ms, within_ms)
    if len(given) != 2:
        raise ConfigError(
            f"within_ms={within_ms!r}: give one duration, or two: how much earlier and how much later than a left "
            "message its right partners may be"
        )
    before, after = (milliseconds("within_ms", each, least=0, most=_LONGEST_MS) for each in given)
    if kind not in ("inner", "left", "right", "outer"):
        raise ConfigError(f'kind={kind!r}: a join is "inner", "left", "right" or "outer"')
    if keep not in ("all", "newest"):
        raise ConfigError(f'keep={keep!r}: a join keeps "all" messages of the span, or the "newest" of each key')
    return Join(before, after, kind, keep, late_to)


def join_definition(join: Join, key: Serde[Any], left: Serde[Any], right: Serde[Any]) -> str:
    """The properties that the bytes of a join's store depend on, as one word. The function is left out: it may
    change."""
    parts = (
        f"within={join.before_ms},{join.after_ms}",
        join.kind,
        join.keep,
        f"key={key.name}",
        f"left={left.name}",
        f"right={right.name}",
    )
    return ":".join(parts).replace(" ", "")


Order: TypeAlias = Literal["event-time"]
"""The order of messages: by event time, whatever the order in which they come."""

IN_ORDER = ".in-order"
"""The ending of the name of a store of messages that wait for their turn."""


@dataclass(frozen=True, slots=True)
class OrderedSource:
    """The messages of one of the operators that an operator reads."""

    id: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stored_serde: Serde[Any]
    """Writes and reads the values that wait."""

    @classmethod
    def of(cls, op_id: str, key: Serde[Any], value: Serde[Any]) -> OrderedSource:
        return cls(op_id, key, value, value.for_store_values() if isinstance(value, ColumnSerde) else value)


@dataclass(frozen=True, slots=True)
class EventTimeOrder:
    """The messages of an operator wait in a store until the watermark has passed them, and come by event time."""

    operator: ClassVar[str] = "penstock.runtime.operators.event_time:OrderedOperator"
    """The class that runs around the operator's own."""

    store: str
    sources: tuple[OrderedSource, ...]
    late_to: SystemStream | None
    by_offset: bool
    """Messages of the same key and time come in the order of their offsets. False behind operators that make messages
    by time or from several others: these come in the order of their bytes, because their offsets depend on batches."""


def check_order(order: object, late_to: SystemStream | None, what: str) -> bool:
    """True if messages are to be put in order. Raises ConfigError, which begins with `what`, if the arguments are
    wrong."""
    if order not in (None, "event-time"):
        raise ConfigError(f'{what}: order is "event-time", or None for the order in which messages come; not {order!r}')
    if order is None and late_to is not None:
        raise ConfigError(f'{what}: late_to is for order="event-time", where a message can be late')
    return order is not None


def stores_of(ordering: EventTimeOrder | None) -> tuple[str, ...]:
    """The store of an order, if there is one."""
    return () if ordering is None else (ordering.store,)


def order_definition(sources: tuple[OrderedSource, ...], *, by_column: bool) -> str:
    """The properties that the bytes of the waiting messages depend on, as one word."""
    parts = [f"key={each.key_serde.name}:value={each.stored_serde.name}" for each in sources]
    return ":".join(("ordered-columns" if by_column else "ordered", *parts)).replace(" ", "")


EARLIEST_MS: Final = -(2**63)
"""Before every event time: the end of a range of versions."""
_LATEST_MS = 2**63 - 1


class LatestFirst(Serde[int]):
    """Times in epoch milliseconds, as eight bytes that sort from the latest to the earliest."""

    width: ClassVar[int] = 8

    @property
    def name(self) -> str:
        return "latest-first"

    def to_bytes(self, obj: int) -> bytes:
        return (_LATEST_MS - obj).to_bytes(self.width, "big")

    def from_bytes(self, data: bytes) -> int:
        return _LATEST_MS - int.from_bytes(data, "big")


class VersionKey(Tuple):
    """A key and the event time of a version. The versions of a key follow each other, even if keys do not sort."""

    def __init__(self, key: Serde[Any]) -> None:
        self.fields = (key, LatestFirst())

    @property
    def name(self) -> str:
        return f"version-key({self.fields[0].name})"


class _Deletion:
    """The object that `VersionValue` takes for a version which says that its key has no value."""


DELETED: Final = _Deletion()


class VersionValue(Serde[Any]):
    """The value of a version, or None if the key has none as of its time."""

    def __init__(self, value: Serde[Any]) -> None:
        self.value = value

    @property
    def name(self) -> str:
        return f"version({self.value.name})"

    def continuing(self, before: str) -> Serde[Any]:
        return VersionValue(self.value.continuing(before.removeprefix("version(")[:-1]))

    def mapped(self, change: Callable[[Serde[Any]], Serde[Any]]) -> Serde[Any]:
        return VersionValue(self.value.mapped(change))

    def to_bytes(self, obj: Any) -> bytes:
        return b"\x00" if obj is DELETED else b"\x01" + self.value.to_bytes(obj)

    def from_bytes(self, data: bytes) -> Any:
        return self.value.from_bytes(data[1:]) if data[0] else None
