"""State variables of the current key, above a task's stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import Row

from penstock.api.state.store import KeyValueStore
from penstock.spark.processor.declared import Variable
from penstock.spark.processor.values.codec import RowCodec
from penstock.spark.processor.values.keys import KeyCodec
from penstock.spark.processor.values.lists import StoredLists

Store = KeyValueStore[bytes, bytes]


class ProcessedKey:
    """The key that is being processed."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: bytes | None = None


class StoredValue(ValueState):
    """A row for each key."""

    def __init__(self, variable: Variable, store: Store, current: ProcessedKey) -> None:
        super().__init__(None, variable.name)  # type: ignore[arg-type]
        codec = RowCodec(variable.schema, variable.name)
        self._current = current
        self._read, self._write = store.get, store.put
        self._encode, self._decode = codec.encode, codec.decode

    def exists(self) -> bool:
        return self._read(self._current.key) is not None  # type: ignore[arg-type]

    def get(self) -> tuple[Any, ...] | None:
        data = self._read(self._current.key)  # type: ignore[arg-type]
        return None if data is None else self._decode(data)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._write(self._current.key, self._encode(newValue))  # type: ignore[arg-type]

    def clear(self) -> None:
        self._write(self._current.key, None)  # type: ignore[arg-type]


class StoredList(ListState):
    """A list of rows for each key."""

    def __init__(self, variable: Variable, lists: StoredLists, current: ProcessedKey) -> None:
        super().__init__(None, variable.name)  # type: ignore[arg-type]
        codec = RowCodec(variable.schema, variable.name)
        self._lists, self._current = lists, current
        self._encode, self._decode = codec.encode, codec.decode

    def exists(self) -> bool:
        return self._lists.exists(self._current.key)  # type: ignore[arg-type]

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The elements, as of the moment when the first one is taken."""
        decode = self._decode
        for data in self._lists.get(self._current.key):  # type: ignore[arg-type]
            yield decode(data)

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._lists.put(self._current.key, self._encoded(newState))  # type: ignore[arg-type]

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._lists.append(self._current.key, [self._encode(newState)])  # type: ignore[arg-type]

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._lists.append(self._current.key, self._encoded(newState))  # type: ignore[arg-type]

    def clear(self) -> None:
        self._lists.put(self._current.key, [])  # type: ignore[arg-type]

    def _encoded(self, rows: list[tuple[Any, ...]]) -> list[bytes]:
        found = [*map(self._encode, rows)]
        if not found:
            raise PySparkRuntimeError(
                "Error updating list state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the "
                f"State Store. Cannot write empty list values to State store for StateName {self._stateName}."
            )
        return found


class StoredMap(MapState):
    """A map of rows for each key. An entry of the store is under the key and the user's key."""

    def __init__(self, variable: Variable, store: Store, current: ProcessedKey) -> None:
        super().__init__(None, variable.name)  # type: ignore[arg-type]
        assert variable.user_key is not None, "a map has keys"  # noqa: S101
        codec, keys = RowCodec(variable.schema, variable.name), KeyCodec(variable.user_key, f"{variable.name}.key")
        self._names = list(variable.schema.names)
        self._store, self._current = store, current
        self._read, self._write = store.get, store.put
        self._encode, self._decode = codec.encode, codec.decode
        self._encode_key, self._decode_key = keys.encode, keys.decode_from

    def exists(self) -> bool:
        return next(self._entries(), None) is not None

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        data = self._read(self._current.key + self._encode_key(key))  # type: ignore[operator]
        if data is None:
            return None
        row: Row = tuple.__new__(Row, self._decode(data))
        row.__fields__ = self._names
        return row

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._read(self._current.key + self._encode_key(key)) is not None  # type: ignore[operator]

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._write(self._current.key + self._encode_key(key), self._encode(value))  # type: ignore[operator]

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """The entries, as of the moment when the first one is taken."""
        at, decode_key, decode = len(self._current.key), self._decode_key, self._decode  # type: ignore[arg-type]
        for key, data in self._entries():
            yield tuple(decode_key(key, at)[0]), decode(data)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return (value for _, value in self.iterator())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._write(self._current.key + self._encode_key(key), None)  # type: ignore[operator]

    def clear(self) -> None:
        for key, _ in list(self._entries()):
            self._write(key, None)

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._store.items(prefix=self._current.key)
