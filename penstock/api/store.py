"""The key-value store as the application sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from penstock.api.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A declared store: its name and serdes. Every task has a separate instance."""

    name: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]


class KeyValueStore(ABC, Generic[K, V]):
    """State of one task: a map ordered by the unsigned bytes of the keys (Samza's KeyValueStore).

    ```python
    self.totals: ps.KeyValueStore[str, int] = context.store("totals")
    self.totals["N14228"] = self.totals.get("N14228", 0) + 1
    if "N14228" in self.totals:
        for key, value in self.totals.items(prefix="N14"):
            ...
    ```

    Writes are seen by the reads that follow, belong to the running batch, and are undone when its attempt is
    discarded. Each `get` makes a new object. It may be changed in place, but only `put` writes it: the value at the end
    of the call of `put` is what is stored, and a value changed without a `put` afterwards is not a write.
    A store is used by the one thread that calls the task.
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """The value, or the default if the key is absent."""

    def __getitem__(self, key: K) -> V:
        """The value. Raises KeyError if the key is absent."""
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V | None) -> None:
        """`put`."""
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        """`delete`: unlike a dict's, it does nothing if the key is absent."""
        self.delete(key)

    def __contains__(self, key: K) -> bool:
        """Whether the key has a value."""
        return self.get(key) is not None

    def __iter__(self) -> Iterator[K]:
        """The keys, in the order of their bytes."""
        return (key for key, _ in self.all())

    def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
        """The values of several keys; absent ones map to None."""
        return {key: self.get(key) for key in keys}

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Store the value under the key; None deletes it."""

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """`put` every entry."""
        for key, value in entries.items():
            self.put(key, value)

    @abstractmethod
    def delete(self, key: K) -> None:
        """Remove the key; nothing happens if it is absent."""

    def delete_all(self, keys: Iterable[K]) -> None:
        """`delete` every key."""
        for key in keys:
            self.delete(key)

    @abstractmethod
    def range(self, from_key: K, to_key: K) -> Iterator[tuple[K, V]]:
        """The entries with `from_key` <= key < `to_key`, in the order of the keys.

        The iterator shows the entries as they are now, whatever is put or deleted while it is open, and costs what is
        taken from it: `next(store.range(...), None)` is the first entry. Of `Tuple` keys, the bounds may
        be the first fields only: ("N1",) comes before every key that begins with it.

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

        The prefix of `String` and `Bytes` keys is text or bytes, that of `Tuple` keys a tuple of the first fields. Only
        what is taken from the iterator is read.

        Raises:
            SerdeError: keys of the store's serde have no prefixes, or the prefix is none of theirs.
        """

    @abstractmethod
    def snapshot(self, from_key: K, to_key: K) -> list[tuple[K, V]]:
        """The entries of the range as they are now, unmoved by later writes."""

    def flush(self) -> None:
        """Nothing to do: writes become durable with the batch's commit. Here for Samza's interface."""
