"""The interface of key-value stores to an application."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, overload

from penstock.api.serdes import Bytes, Serde

if TYPE_CHECKING:
    from penstock.api.state.side_inputs import Side

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
F = TypeVar("F", bound=tuple[Any, ...])

TtlFrom: TypeAlias = Literal["write", "access"]


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """The time for which entries live after their last write, or their last access."""

    ms: int
    since: TtlFrom = "write"


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


OPERATOR_STORES = (".window", ".join", ".timers", ".aggregate", ".in-order")
"""Endings of the names of stores that belong to one operator: `<operator id>.window`."""


def own_stores(operators: Iterable[str]) -> frozenset[str]:
    """Every store that could belong to one of these operators alone. What a task declares is not among them."""
    return frozenset(f"{operator}{kind}" for operator in operators for kind in OPERATOR_STORES)


def waiting_stores(operators: Iterable[str]) -> frozenset[str]:
    """The same but for the totals of an aggregate: they wait for nothing, and no drain sends them."""
    return frozenset(store for store in own_stores(operators) if not store.endswith(".aggregate"))


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
`runtime/operators/temporal_join.py`, `runtime/timers.py`, `runtime/operators/send_to_table.py`, `runtime/order` and
`runtime/operators/columns`.
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


class KeyValueStore(ABC, Generic[K, V]):
    """The state of one task: a map from keys to values, ordered by the unsigned bytes of the keys.

    It is Samza's KeyValueStore, with the operators of a dict. A task gets its stores from `TaskContext.store`.

    A read sees all earlier writes. Writes belong to the running batch, and are undone if its attempt is discarded. Each
    `get` makes a new object. The object may be changed in place, but only `put` writes it: the store keeps the value as
    it is when `put` is called. Only the thread that calls the task uses its stores.

    Example:
        >>> class Visits(ps.StreamTask):
        ...     def init(self, context):
        ...         self.visits: ps.KeyValueStore[str, int] = context.store("visits")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.visits[envelope.key] = self.visits.get(envelope.key, 0) + 1
        ...         collector.emit(key=envelope.key, value=dict(self.visits.items(prefix="N1")))
        >>> app = ps.StreamApplication("visits")
        >>> app.store("visits")
        >>> visits = app.input("local.visits").process(Visits, stores=["visits"])
        >>> _ = visits.send_to(app.output("local.seen"))
        >>> messages = [("N14", 0), ("N2", 0), ("N14", 0)]
        >>> runner = TestRunner(app, partitions=1).input("local.visits", messages).run()
        >>> [message.value for message in runner.output("local.seen")]
        [{'N14': 1}, {'N14': 1}, {'N14': 2}]
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """The value under the key, as a new object.

        Args:
            key: the key.
            default: the result if the key is absent.

        Raises:
            SerdeError: the key does not fit the store's serde.
        """

    def __getitem__(self, key: K) -> V:
        """The value under the key. Raises KeyError if the key is absent."""
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V | None) -> None:
        """Store the value under the key, as `put`."""
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        """Remove the key, as `delete`. Unlike a dict's, it does nothing if the key is absent."""
        self.delete(key)

    def __contains__(self, key: K) -> bool:
        """Return True if the key has a value."""
        return self.get(key) is not None

    def __iter__(self) -> Iterator[K]:
        """The keys, in the order of their bytes."""
        return (key for key, _ in self.all())

    def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
        """The values of several keys, by key. The value of an absent key is None.

        Args:
            keys: the keys.
        """
        return {key: self.get(key) for key in keys}

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Store the value under the key, in place of the previous one.

        Args:
            key: the key.
            value: the value as it is now; later changes of the object are not written. None deletes the key.

        Raises:
            SerdeError: the key or the value does not fit the store's serdes.
        """

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Call `put` for every entry.

        Args:
            entries: values by key; None deletes a key.
        """
        for key, value in entries.items():
            self.put(key, value)

    @abstractmethod
    def delete(self, key: K) -> None:
        """Remove the key. Nothing happens if it is absent.

        Args:
            key: the key.
        """

    def delete_all(self, keys: Iterable[K]) -> None:
        """Call `delete` for every key.

        Args:
            keys: the keys.
        """
        for key in keys:
            self.delete(key)

    @overload
    def range(self, from_key: K, to_key: K) -> Iterator[tuple[K, V]]: ...
    @overload
    def range(
        self: KeyValueStore[F, V], from_key: tuple[Any, ...], to_key: tuple[Any, ...]
    ) -> Iterator[tuple[F, V]]: ...
    @abstractmethod
    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        """The entries with `from_key` <= key < `to_key`, in the order of the keys, as Samza's `range`.

        The iterator shows the entries as they are now, whatever is put or deleted while it is open. It reads only what
        is taken from it: `next(store.range(...), None)` is the first entry.

        Args:
            from_key: the first key. A bound of `Tuple` keys may have the first fields only: ("N1",) comes before
                every key that begins with it.
            to_key: the key behind the last one.

        Raises:
            ConfigError: the bytes of the keys do not sort as the keys do (`Json`, `SamzaLong`, ...), or `from_key`
                comes after `to_key`.
        """

    @abstractmethod
    def all(self) -> Iterator[tuple[K, V]]:
        """Every entry, in the order of the keys' bytes."""

    @abstractmethod
    def items(self, *, prefix: Any = None) -> Iterator[tuple[K, V]]:
        """Every entry, or those whose keys begin with the prefix, in the order of the keys' bytes.

        The iterator reads only what is taken from it.

        Args:
            prefix: text for `String` keys, bytes for `Bytes` keys, a tuple of the first fields for `Tuple` keys. None
                for every entry.

        Raises:
            SerdeError: keys of the store's serde have no prefixes, or the prefix does not fit the serde.
        """

    @overload
    def snapshot(self, from_key: K, to_key: K) -> list[tuple[K, V]]: ...
    @overload
    def snapshot(
        self: KeyValueStore[F, V], from_key: tuple[Any, ...], to_key: tuple[Any, ...]
    ) -> list[tuple[F, V]]: ...
    @abstractmethod
    def snapshot(self, from_key: Any, to_key: Any) -> list[tuple[Any, Any]]:
        """The entries of a range as a list, as Samza's `snapshot`. Later writes do not change it.

        Args:
            from_key: the first key, as in `range`.
            to_key: the key behind the last one.

        Raises:
            ConfigError: as `range`.
        """

    def flush(self) -> None:
        """Do nothing. Writes become durable with the job's next commit; the method exists for Samza's interface."""
