"""The stores of an application, as its code sees them.

`KeyValueStore` is the interface of key-value stores, `ColumnStore` that of stores whose values are rows of a schema.
A `Table` is a store that streams write and are joined with, as in Samza's Table API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from penstock.api.serdes import Serde

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.arrays.given import ColumnLike, RowsLike


K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
F = TypeVar("F", bound=tuple[Any, ...])


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


class ColumnStore(KeyValueStore[K, Any]):
    """A store whose values are rows of a schema, read and written by the thousand.
    `app.store(name, value=ps.Columns(...))` declares one.

    Keys are a column that fits the serde of the keys: text for `String`, integers for `Long`, and so on; none may be
    null. Columns are Arrow's, or those of Polars, pandas and NumPy; rows are Arrow's, or DataFrames. All calls of
    `KeyValueStore` work as well, with a dict for each row, and see the same entries.

    Example:
        >>> import pyarrow as pa
        >>> class Last(ps.BatchProcessor):
        ...     def init(self, context):
        ...         self.last: ps.ColumnStore[str] = context.store("last")
        ...
        ...     def process(self, batch, collector):
        ...         before = self.last.get_many(batch.keys)
        ...         self.last.put_many(batch.keys, batch.values)
        ...         collector.emit(batch.keys, before)
        >>> gate = ps.Columns(pa.schema({"gate": pa.string()}))
        >>> app = ps.StreamApplication("gates")
        >>> app.store("last", value=gate)
        >>> before = app.input("local.gates", value=gate).process_batch(Last, stores=["last"])
        >>> _ = before.send_to(app.output("local.before"))
        >>> runner = TestRunner(app).input("local.gates", [("UA1", {"gate": "A1"})]).run()
        >>> runner = runner.input("local.gates", [("UA1", {"gate": "B7"})]).run()
        >>> [message.value for message in runner.output("local.before")]
        [{'gate': None}, {'gate': 'A1'}]
    """

    @abstractmethod
    def get_many(self, keys: ColumnLike) -> pa.RecordBatch:
        """The rows of these keys, in their order; a key that is not there has nulls in all columns.

        Args:
            keys: may have the same key several times.

        Raises:
            SerdeError: a key is null, or does not fit the serde.
        """

    @abstractmethod
    def put_many(self, keys: ColumnLike, rows: RowsLike) -> None:
        """Store a row under each key. If a key occurs several times, the last row counts.

        Args:
            keys: one for each row.
            rows: with the columns of the store's schema, in any order.

        Raises:
            SerdeError: a key is null, or a key or a row does not fit.
        """

    @abstractmethod
    def delete_many(self, keys: ColumnLike) -> None:
        """Remove these keys. Nothing happens for those that are absent.

        Args:
            keys: the keys.

        Raises:
            SerdeError: a key is null, or does not fit the serde.
        """

    @abstractmethod
    def scan(self, rows: int = 65_536) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        """Every entry, as (keys, rows), in no particular order, as they are now.

        Args:
            rows: the most rows in a batch.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A declared table, which `send_to` writes and `join_table` reads. `app.table(...)` makes it.

    Example:
        >>> app = ps.StreamApplication("names")
        >>> airlines = app.table("airlines", value=ps.String())
        >>> _ = app.input("local.airlines", value=ps.String()).send_to(airlines)
        >>> flights = app.input("local.flights").join_table(airlines, lambda flight, name: {**flight, "airline": name})
        >>> _ = flights.send_to(app.output("local.named"))
        >>> runner = TestRunner(app).input("local.airlines", [("UA", "United")]).run()
        >>> runner = runner.input("local.flights", [("UA", {"flight": 1}), ("XX", {"flight": 2})]).run()
        >>> [message.value for message in runner.output("local.named")], runner.store("airlines")
        ([{'flight': 1, 'airline': 'United'}], {'UA': 'United'})
    """

    name: str
    """The name of its store."""
    key_serde: Serde[Any]
    """The serde of the keys of streams that write or join it."""
    history_ms: int | None = None
    """The time for which versions are kept below the watermark, in milliseconds; None: the table has no versions."""
