"""State of the current key: views of a store's entries for the key of the message that a task handles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeAlias, TypeVar

from penstock.api.serdes import Long, Serde, Tuple
from penstock.api.serdes.values import OrderedLong
from penstock.api.store import KeyValueStore
from penstock.errors import ConfigError

V = TypeVar("V")
K = TypeVar("K")

NO_CALL: Final = object()
"""The current key while the task handles nothing that has one."""

ListPlace: TypeAlias = tuple[int, int]
"""The place of an element in a list: the batch time when it was appended, and a number that grows within it."""


class CurrentKey:
    """The key of the message, or of the timer, that a task handles. The runtime sets it around each call."""

    __slots__ = ("key", "operator")

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.key: Any = NO_CALL

    def get(self) -> Any:
        """Raises ConfigError if there is no key."""
        key = self.key
        if key is None or key is NO_CALL:
            raise self._missing()
        return key

    def _missing(self) -> ConfigError:
        if self.key is None:
            return ConfigError(
                f"operator `{self.operator}` uses state of the current key, but this message has no key: give it one "
                "with .partition_by(...), or leave it out with .filter(lambda message: message.key is not None, "
                "envelope=True)"
            )
        return ConfigError(
            f"operator `{self.operator}` uses state of the current key where there is none: use it in process() and "
            "on_timer(). In other methods, context.store(...) has the entries of all keys"
        )


def list_keys(key: Serde[Any]) -> Tuple:
    """The serde of the keys of a list state: (key, batch time, number)."""
    return Tuple(key, Long(), Long())


def check_list_keys(store: str, serde: Serde[Any]) -> None:
    """Raise ConfigError unless the keys of a store are those of a list state."""
    if not isinstance(serde, Tuple) or [type(field) for field in serde.fields[1:]] != [OrderedLong, OrderedLong]:
        raise ConfigError(
            f"store `{store}` has `{serde.name}` keys, which are not those of a list state: declare it with "
            f'app.list_state("{store}", key=..., value=...)'
        )


def check_map_keys(store: str, serde: Serde[Any]) -> None:
    """Raise ConfigError unless the keys of a store are those of a map state."""
    if not isinstance(serde, Tuple) or len(serde.fields) != 2:
        raise ConfigError(
            f"store `{store}` has `{serde.name}` keys, which are not those of a map state: declare it with "
            f'app.map_state("{store}", key=..., map_key=..., value=...)'
        )


class ValueState(Generic[V]):
    """One value for the current key. A task gets it from `TaskContext.value_state`.

    Example:
        >>> class Changes(ps.StreamTask):
        ...     def init(self, context):
        ...         self.last = context.value_state("last")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         if self.last.get() != envelope.value:
        ...             self.last.update(envelope.value)
        ...             collector.emit(key=envelope.key, value=envelope.value)
        >>> app = ps.StreamApplication("changes")
        >>> app.value_state("last")
        >>> changes = app.input("local.gates").process(Changes, stores=["last"])
        >>> _ = changes.send_to(app.output("local.changes"))
        >>> runner = TestRunner(app).input("local.gates", [("UA1", 7), ("UA1", 7), ("UA1", 8)]).run()
        >>> [message.value for message in runner.output("local.changes")], runner.store("last")
        ([7, 8], {'UA1': 8})
    """

    def __init__(self, store: KeyValueStore[Any, V], current: CurrentKey) -> None:
        self._store = store
        self._current = current

    def get(self, default: Any = None) -> Any:
        """The value, as a new object.

        Args:
            default: the result if the key has no value.

        Raises:
            ConfigError: there is no current key.
        """
        return self._store.get(self._current.get(), default)

    def exists(self) -> bool:
        """Return True if the key has a value."""
        return self._store.get(self._current.get()) is not None

    def update(self, value: V | None) -> None:
        """Store a value in place of the previous one.

        Args:
            value: the value as it is now. None deletes it.

        Raises:
            ConfigError: there is no current key.
            SerdeError: the value does not fit the store's serde.
        """
        self._store.put(self._current.get(), value)

    def clear(self) -> None:
        """Delete the value."""
        self._store.delete(self._current.get())


class ListState(Generic[V]):
    """A list for the current key. A task gets it from `TaskContext.list_state`.

    Example:
        >>> class Summary(ps.StreamTask):
        ...     def init(self, context):
        ...         self.delays = context.list_state("delays")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.delays.append(envelope.value)
        ...         if envelope.value == 0:
        ...             collector.emit(key=envelope.key, value=list(self.delays.get()))
        ...             self.delays.clear()
        >>> app = ps.StreamApplication("delays")
        >>> app.list_state("delays")
        >>> delays = app.input("local.delays").process(Summary, stores=["delays"])
        >>> _ = delays.send_to(app.output("local.summaries"))
        >>> runner = TestRunner(app).input("local.delays", [("UA1", 5), ("UA2", 7), ("UA1", 3), ("UA1", 0)]).run()
        >>> [message.value for message in runner.output("local.summaries")]
        [[5, 3, 0]]
    """

    def __init__(self, store: KeyValueStore[Any, V], current: CurrentKey, next_place: Callable[[], ListPlace]) -> None:
        self._store = store
        self._current = current
        self._next_place = next_place

    def append(self, value: V) -> None:
        """Add an element at the end. Nothing of the list is read.

        Args:
            value: the element as it is now.

        Raises:
            ConfigError: there is no current key, or the element is None, which a store cannot hold.
            SerdeError: the element does not fit the store's serde.
        """
        if value is None:
            raise ConfigError("None cannot be an element of a list state: leave it out, or append another value for it")
        self._store.put((self._current.get(), *self._next_place()), value)

    def get(self) -> Iterator[V]:
        """The elements as they are now, in the order in which they were appended. The iterator reads only what is taken
        from it.

        Raises:
            ConfigError: there is no current key.
        """
        return (value for _, value in self._store.items(prefix=(self._current.get(),)))

    def exists(self) -> bool:
        """Return True if the list has an element. Only the first one is read."""
        return next(self._store.items(prefix=(self._current.get(),)), None) is not None

    def clear(self) -> None:
        """Delete all elements, which reads each of them once."""
        for entry in self._store.items(prefix=(self._current.get(),)):
            self._store.delete(entry[0])


class MapState(Generic[K, V]):
    """A map for the current key. A task gets it from `TaskContext.map_state`.

    Example:
        >>> class Seats(ps.StreamTask):
        ...     def init(self, context):
        ...         self.seats = context.map_state("seats")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         seat, name = envelope.value
        ...         if seat in self.seats:
        ...             collector.emit(key=envelope.key, value=[seat, "is taken by", self.seats.get(seat)])
        ...         else:
        ...             self.seats.put(seat, name)
        >>> app = ps.StreamApplication("seats")
        >>> app.map_state("seats")
        >>> refused = app.input("local.bookings").process(Seats, stores=["seats"])
        >>> _ = refused.send_to(app.output("local.refused"))
        >>> bookings = [("UA1", ["1A", "Ann"]), ("UA2", ["1A", "Bo"]), ("UA1", ["1A", "Cy"])]
        >>> runner = TestRunner(app).input("local.bookings", bookings).run()
        >>> [message.value for message in runner.output("local.refused")]
        [['1A', 'is taken by', 'Ann']]
    """

    def __init__(self, store: KeyValueStore[Any, V], current: CurrentKey) -> None:
        self._store = store
        self._current = current

    def get(self, map_key: K, default: Any = None) -> Any:
        """The value under a key of the map, as a new object. Nothing else of the map is read.

        Args:
            map_key: the key in the map.
            default: the result if the map has no such key.

        Raises:
            ConfigError: there is no current key.
            SerdeError: the map's key does not fit the store's serde.
        """
        return self._store.get((self._current.get(), map_key), default)

    def __contains__(self, map_key: K) -> bool:
        """Return True if the map has the key."""
        return self._store.get((self._current.get(), map_key)) is not None

    def put(self, map_key: K, value: V | None) -> None:
        """Store a value under a key of the map. Nothing of the map is read.

        Args:
            map_key: the key in the map.
            value: the value as it is now. None removes the key.

        Raises:
            ConfigError: there is no current key.
            SerdeError: the map's key or the value does not fit the store's serdes.
        """
        self._store.put((self._current.get(), map_key), value)

    def remove(self, map_key: K) -> None:
        """Remove a key of the map. Nothing happens if it is absent.

        Args:
            map_key: the key in the map.
        """
        self._store.delete((self._current.get(), map_key))

    def items(self) -> Iterator[tuple[K, V]]:
        """The map's entries as they are now, in the order of their keys' bytes. The iterator reads only what is taken
        from it.

        Raises:
            ConfigError: there is no current key.
        """
        return ((key[1], value) for key, value in self._store.items(prefix=(self._current.get(),)))

    def exists(self) -> bool:
        """Return True if the map has an entry. Only the first one is read."""
        return next(self._store.items(prefix=(self._current.get(),)), None) is not None

    def clear(self) -> None:
        """Remove all entries, which reads each of them once."""
        for entry in self._store.items(prefix=(self._current.get(),)):
            self._store.delete(entry[0])
