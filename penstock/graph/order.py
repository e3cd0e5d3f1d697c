"""The order in which an operator takes its messages, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.ssp import SystemStream
from penstock.errors import ConfigError

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

    operator: ClassVar[str] = "penstock.runtime.operators.ordered:OrderedOperator"
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


def definition_of(sources: tuple[OrderedSource, ...], *, by_column: bool) -> str:
    """The properties that the bytes of the waiting messages depend on, as one word."""
    parts = [f"key={each.key_serde.name}:value={each.stored_serde.name}" for each in sources]
    return ":".join(("ordered-columns" if by_column else "ordered", *parts)).replace(" ", "")
