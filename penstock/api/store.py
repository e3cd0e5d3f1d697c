"""The key-value store as the application sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.api.serdes import Serde


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A declared store: its name and serdes. Every task has an instance of its own."""

    name: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]


class KeyValueStore(ABC):
    """State of one task: a map ordered by the unsigned bytes of the keys (Samza's KeyValueStore).

    Writes are seen by the reads that follow, belong to the running batch, and are undone when its attempt is
    discarded. Each `get` makes a new object. It may be changed in place, but only `put` writes it: the value at the end
    of the call of `put` is what is stored, and a value changed without a `put` afterwards is not a write.
    A store is used by the one thread that calls the task.
    """

    @abstractmethod
    def get(self, key: Any) -> Any:
        """The value, or None if the key is absent."""

    def get_all(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """The values of several keys; absent ones map to None."""
        return {key: self.get(key) for key in keys}

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Store the value under the key; None deletes it."""

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """`put` every entry."""
        for key, value in entries.items():
            self.put(key, value)

    @abstractmethod
    def delete(self, key: Any) -> None:
        """Remove the key; nothing happens if it is absent."""

    def delete_all(self, keys: Iterable[Any]) -> None:
        """`delete` every key."""
        for key in keys:
            self.delete(key)

    @abstractmethod
    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        """The entries with `from_key` <= key < `to_key`, in the order of the keys.

        What is put or deleted while the iterator is open may or may not be seen by it. Of `Tuple` keys, the bounds may
        be the first fields only: ("N1",) comes before every key that begins with it.

        Raises:
            ConfigError: the bytes of the keys do not sort as the keys do (`Json`, `SamzaLong`, ...), or `from_key`
                comes after `to_key`.
        """

    @abstractmethod
    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every entry, in the order of the keys' bytes."""

    @abstractmethod
    def snapshot(self, from_key: Any, to_key: Any) -> list[tuple[Any, Any]]:
        """The entries of the range as they are now, unmoved by later writes."""

    def flush(self) -> None:  # noqa: B027 - nothing to do by default is the contract
        """Nothing to do: writes become durable with the batch's commit. Here for Samza's interface."""
