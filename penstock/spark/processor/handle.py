"""The handle that a running processor gets in `init`: PySpark's interface above a task's stores.

It gives the state variables of the current key, and the key's timers: any number for each key, each known by its
time. The entries of timers are those of `penstock/runtime/timers.py`, with the time as the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import Row

from penstock.api.store import KeyValueStore
from penstock.api.time.firing import END_OF_TIME, timers_store
from penstock.errors import ConfigError
from penstock.graph.specs.code import BatchTaskContext
from penstock.runtime.timers import key_and_name, place_of, time_bytes, time_of
from penstock.spark.processor.codec import RowCodec, StoredLists
from penstock.spark.processor.declared import DeclaredVariables, DeclaringHandle, TimeMode, Variable, deleted_variable
from penstock.spark.processor.fields import KeyCodec
from penstock.state.stores.timed_entries import BY_KEY, BY_TIME, NAMED, TIME


class ProcessorTimers:
    """The timers of one task."""

    def __init__(self, store: KeyValueStore[bytes, bytes], domain: Literal["event", "processing"]) -> None:
        self._store = store
        letter = domain[:1].encode()
        self._times, self._keys = BY_TIME + letter, BY_KEY + letter
        self._oldest: int | None = None
        """No timer is earlier; None: there is none."""
        self._is_exact = False

    def register(self, key: bytes, time_ms: int) -> None:
        """Set a timer; nothing happens if it is set."""
        place, time = place_of(key, str(time_ms)), time_bytes(time_ms)
        by_key = self._keys + place
        if self._store.get(by_key) is not None:
            return
        self._store.put(by_key, time)
        self._store.put(self._times + time + place, b"")
        if self._is_exact and (self._oldest is None or time_ms < self._oldest):
            self._oldest = time_ms

    def delete(self, key: bytes, time_ms: int) -> None:
        """Delete a timer; nothing happens if it is not set."""
        place = place_of(key, str(time_ms))
        by_key = self._keys + place
        if self._store.get(by_key) is None:
            return
        self._store.put(by_key, None)
        self._store.put(self._times + time_bytes(time_ms) + place, None)
        if time_ms == self._oldest:
            self._is_exact = False

    def of(self, key: bytes) -> list[int]:
        """The times of a key's timers, the earliest first."""
        return sorted(time_of(time) for _, time in self._store.items(prefix=self._keys + place_of(key, "")))

    def expired(self, until_ms: int) -> Iterator[tuple[bytes, int]]:
        """Keys and times of the timers up to a time, by time, then by key. Timers that are set or deleted meanwhile
        make no difference."""
        behind = time_bytes(min(until_ms, END_OF_TIME - 1) + 1)
        for by_time, _ in self._store.range(self._times, self._times + behind):
            key, _ = key_and_name(by_time[NAMED:])
            yield key or b"", time_of(by_time[TIME])

    def oldest(self) -> int | None:
        """The time of the earliest timer; None if there is none."""
        if not self._is_exact:
            first = next(iter(self._store.items(prefix=self._times)), None)
            self._oldest = None if first is None else time_of(first[0][TIME])
            self._is_exact = True
        return self._oldest


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


class TaskState:
    """State with the lifetime of a task: its stores, its timers and the objects of its state variables."""

    def __init__(self, context: BatchTaskContext, operator: str, mode: TimeMode, declared: DeclaredVariables) -> None:
        self.current = ProcessedKey()
        self.now_ms = 0
        self.mode = mode
        self.declared = declared
        self.timers: ProcessorTimers | None = None
        if mode != "none":
            store = context.store(timers_store(operator))
            self.timers = ProcessorTimers(store, "event" if mode == "eventtime" else "processing")
        self.variables = {each.name: each for each in declared.variables}
        self._objects = {each.name: self._made(each, context) for each in declared.variables}

    def _made(self, variable: Variable, context: BatchTaskContext) -> Any:
        store = context.store(variable.name)
        if variable.kind == "value":
            return StoredValue(variable, store, self.current)
        if variable.kind == "map":
            return StoredMap(variable, store, self.current)
        return StoredList(variable, StoredLists(store, variable.ttl_ms, lambda: self.now_ms), self.current)

    def object_of(self, variable: Variable) -> Any:
        """Raises ConfigError if `init` did not declare the variable when the query began."""
        if self.variables.get(variable.name) != variable:
            was = self.variables.get(variable.name)
            raise ConfigError(
                f"the processor's `init` declares the state variable {variable.layout()} `{variable.name}`, but it "
                f"declared {'no such variable' if was is None else was.layout()} when the query began: `init` must "
                "declare the same variables each time"
            )
        return self._objects[variable.name]


class RunningHandle(DeclaringHandle):
    """The handle of one batch."""

    def __init__(self, state: TaskState) -> None:
        super().__init__(state.mode, self._known_schema)
        self._state = state
        self._is_open = True

    def close_init(self) -> None:
        """End `init`: no more variables can be declared, and timers can be set."""
        self._is_open = False

    def _known_schema(self, text: str) -> Any:
        found = self._state.declared.schemas.get(text)
        if found is None:
            raise ConfigError(
                f"the processor's `init` declares a state variable with the schema `{text}`, which it did not when the "
                "query began: `init` must declare the same variables each time"
            )
        return found

    def deleteIfExists(self, stateName: str) -> None:
        """Forget the variable. The query's earlier state under the name was removed when the query began."""
        self._check_open("Error deleting state", "delete_if_exists")
        super().deleteIfExists(stateName)

    def _made(self, variable: Variable) -> Any:
        self._check_open(f"Error initializing {variable.kind} state", f"get_{variable.kind}_state")
        return super()._made(variable)

    def _check_open(self, failed: str, operation: str) -> None:
        if not self._is_open:
            raise PySparkRuntimeError(
                f"{failed}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform "
                f"stateful processor operation={operation} with invalid handle state=INITIALIZED."
            )

    def _object(self, variable: Variable) -> Any:
        if variable in self._state.declared.deleted:
            return deleted_variable(variable)
        return self._state.object_of(variable)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers("register").register(self._key(), expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers("delete").delete(self._key(), expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """The times of the current key's timers, the earliest first."""
        return iter(self._timers("list").of(self._key()))

    def _timers(self, operation: str) -> ProcessorTimers:
        timers = self._state.timers
        if timers is None:
            raise PySparkRuntimeError(
                f"Error {operation} timer: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed "
                f"to perform stateful processor operation={operation}_timer with invalid timeMode=None"
            )
        return timers

    def _key(self) -> bytes:
        key = self._state.current.key
        if key is None:
            raise PySparkRuntimeError("Implicit key not found in state store for a timer: no key is being processed")
        return key
