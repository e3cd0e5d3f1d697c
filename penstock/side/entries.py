"""Makes a store's entries from the messages of its side inputs.

Where the partitions are not simply those of the tasks, a task takes its own keys from them. Keys belong to tasks by
their hash modulo the number of tasks. A message whose key has the hash h is in partition h modulo the number of
partitions, so a task needs the partitions that leave the same remainder as the task when they are divided by the
greatest common divisor of both numbers. From them it takes the keys that belong to it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Never

import pyarrow as pa

from penstock.api.messages import Headers, IncomingMessageEnvelope, check_readable
from penstock.api.serdes import Bytes, Integer, Json, Long, Serde, String, not_bytes
from penstock.api.serdes.values import OrderedInteger, OrderedLong
from penstock.api.side_inputs import SideInputsProcessorFactory
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.store import KeyValueStore
from penstock.errors import ConfigError, Interrupted
from penstock.graph.serdes import side_input_place, store_place
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.side.engine import check_key
from penstock.state.engines.engine import Changes, Content, EngineFailedError
from penstock.state.engines.overlay import Overlay
from penstock.state.stores.serdes import SerdeStore
from penstock.state.stores.task_store import StoreLayer, TaskStore
from penstock.system.base import RawMessage, headers_in
from penstock.system.partitioner import partitions_of

Process = Callable[[IncomingMessageEnvelope, KeyValueStore[Any, Any]], Iterable[tuple[Any, Any]]]
_CACHED = 10_000
_ENTRY_BYTES = 150
"""Estimated memory of an entry besides the bytes of its key and value."""


@dataclass(frozen=True, slots=True)
class SidePart:
    """A store of one task, or one that all tasks of a container share, and the partitions that fill it."""

    spec: StoreSpec
    side: SideInputs
    task: int | None
    """None: the part has everything, for every task."""
    ssps: tuple[SystemStreamPartition, ...]
    tasks: int = 0
    spread: tuple[tuple[SystemStream, int], ...] = ()
    """The streams of which the task takes only its own keys, with their numbers of partitions: those that have not as
    many as there are tasks, and all of them if the store is looked into behind a `partition_by`."""

    @property
    def name(self) -> str:
        return f"store `{self.spec.name}`" + ("" if self.task is None else f" of task {self.task}")

    def spread_of(self, ssp: SystemStreamPartition) -> int | None:
        """The number of partitions of a stream that the task takes only its own keys of; None for other streams."""
        return dict(self.spread).get(ssp.system_stream)

    def stream_of(self, ssp: SystemStreamPartition) -> SideStream:
        return next(each for each in self.side.streams if each.stream == ssp.system_stream)


class StoppedError(Exception):
    """The container leaves the epoch."""


class MessageFailedError(Exception):
    """A message does not decode, or the processor raised at it. `cause` is the error, `index` the message's index
    among those that were passed."""

    def __init__(
        self, part: SidePart, ssp: SystemStreamPartition, index: int, message: RawMessage, cause: BaseException
    ):
        self.part = part
        self.ssp = ssp
        self.index = index
        self.message = message
        self.cause = cause
        super().__init__(f"{part.name}: {type(cause).__name__}")


class SideEntries(ABC):
    """Entries of one store that were made and not written yet. Used by one thread."""

    def __init__(self) -> None:
        self.size_bytes = 0
        """Estimated memory of the entries: too much rather than too little."""

    @property
    @abstractmethod
    def changes(self) -> Changes:
        pass

    @abstractmethod
    def add(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        """Make entries from messages of a partition. Raises MessageFailedError; then `begin` must follow."""

    @abstractmethod
    def begin(self, content: Content, *, written: bool) -> None:
        """Forget the entries: they were written to the content (`written`), or are given up. After a rebuild,
        `content` is another object."""


def entries_of(
    part: SidePart, content: Content, config: Mapping[str, str], metrics: MetricsRegistry, stop: threading.Event
) -> SideEntries:
    """The maker of a part's entries: its processor, a new one if there is a factory; copies without one. Once `stop`
    is set, it processes no more messages."""
    side = part.side
    if side.processor is None and all(_is_copied(each, part) for each in side.streams):
        return CopiedEntries(part)
    return ProcessedEntries(part, content, _process(side, config, metrics), stop)


def _process(side: SideInputs, config: Mapping[str, str], metrics: MetricsRegistry) -> Process:
    processor: Any = side.processor
    if processor is None:
        return _identity
    if isinstance(processor, SideInputsProcessorFactory):
        processor = processor.get_side_inputs_processor(config, metrics)
    process: Process = getattr(processor, "process", processor)
    return process


def _identity(message: IncomingMessageEnvelope, store: KeyValueStore[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return ((message.key, message.value),)


_ONE_FORM = (Bytes, String, Integer, Long, OrderedInteger, OrderedLong)
"""Serdes with one form for each object: encoding again returns the bytes that were read."""
_COMMON = (*_ONE_FORM, Json)
"""Serdes whose instances all read the same."""


def _is_copied(stream: SideStream, part: SidePart) -> bool:
    """True if the bytes of a message are also those of its entry."""
    spec = part.spec
    same_key = stream.key_serde is spec.key_serde or type(stream.key_serde) is type(spec.key_serde)
    return (
        same_key
        and type(spec.key_serde) in _ONE_FORM
        and (stream.value_serde is spec.value_serde or _is_same(stream.value_serde, spec.value_serde))
    )


def _is_same(one: Serde[Any], other: Serde[Any]) -> bool:
    return type(one) is type(other) and type(one) in _COMMON


class CopiedEntries(SideEntries):
    """Entries that are copies of messages. Each message is decoded all the same, so that an unreadable one is found
    here, with its offset, and not where a task reads its key."""

    def __init__(self, part: SidePart) -> None:
        super().__init__()
        self._part = part
        self._changes: dict[bytes, bytes | None] = {}

    @property
    def changes(self) -> Changes:
        return self._changes

    def begin(self, content: Content, *, written: bool) -> None:
        self._changes = {}
        self.size_bytes = 0

    def add(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        stream = self._part.stream_of(ssp)
        try:
            keys, values = self._columns(stream, messages)
        except Exception:
            self._find_bad(stream, ssp, messages)
            raise
        self._changes.update(zip(keys, values, strict=True))
        self.size_bytes += len(keys) * _ENTRY_BYTES + sum(map(len, keys)) + sum(map(len, filter(None, values)))

    def _columns(
        self, stream: SideStream, messages: Sequence[RawMessage]
    ) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
        """The keys and values of all messages that have a key. Decodes everything, one column at a time."""
        _, _, keys, values = zip(*messages, strict=True)
        if None in keys:
            pairs = [pair for pair in zip(keys, values, strict=True) if pair[0] is not None]
            keys, values = tuple(key for key, _ in pairs), tuple(value for _, value in pairs)
        if keys:
            check_key(max(keys))
        deque(map(stream.key_serde.from_bytes, keys), maxlen=0)
        there = [value for value in values if value is not None] if None in values else values
        if None not in list(map(stream.value_serde.from_bytes, there)):
            return keys, values
        decode = stream.value_serde.from_bytes  # a value that means None deletes its key
        return keys, [None if value is None or decode(value) is None else value for value in values]

    def _find_bad(self, stream: SideStream, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        """Raise MessageFailedError for the first message that does not decode."""
        for index, message in enumerate(messages):
            if message[2] is None:
                continue  # it is no entry
            try:
                decoded(stream, message)
                check_key(message[2])
            except Exception as error:
                raise MessageFailedError(self._part, ssp, index, message, error) from error


class ProcessedEntries(SideEntries):
    """Entries that a processor makes. It sees the content together with the entries that it has returned before."""

    def __init__(self, part: SidePart, content: Content, process: Process, stop: threading.Event) -> None:
        super().__init__()
        self._stopped = stop.is_set
        self._part = part
        self._process = process
        self._content = content
        self._store = self._over(content)
        self._shown = _ReadOnlyStore(self._store)

    @property
    def changes(self) -> Changes:
        return self._store.overlay.changes

    def begin(self, content: Content, *, written: bool) -> None:
        self.size_bytes = 0
        if written and content is self._content:
            self._store.begin()
            return
        self._content = content
        self._store = self._over(content)
        self._shown = _ReadOnlyStore(self._store)

    def _over(self, content: Content) -> SerdeStore:
        store = SerdeStore(self._part.spec, content, _CACHED)
        store.begin()
        return store

    def add(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        stream, process, shown, write = self._part.stream_of(ssp), self._process, self._shown, self._write
        origins = _Origins(ssp, messages)
        for index, message in enumerate(messages):
            if self._stopped():
                raise StoppedError
            try:
                key, value = decoded(stream, message)
                for entry_key, entry_value in process(IncomingMessageEnvelope(key, value, origins, index), shown):
                    if entry_key is not None:
                        write(entry_key, entry_value)
                if self._store.failure is not None:
                    raise self._store.failure
            except (Interrupted, EngineFailedError):
                raise
            except BaseException as error:
                raise MessageFailedError(self._part, ssp, index, message, error) from error

    def _write(self, key: Any, value: Any) -> None:
        spec, place = self._part.spec, store_place(self._part.spec.name)
        key_bytes = self._store.key_bytes(key)
        check_key(key_bytes)
        data = None
        if value is not None:
            try:
                data = spec.value_serde.to_bytes(value)
            except Exception as error:
                raise place.unwritable("value", spec.value_serde, value, error, key) from error
            if type(data) is not bytes:
                raise not_bytes(spec.value_serde, data, f"{place.name}, value of key {key!r}")
        self._store.overlay.changes[key_bytes] = data
        self.size_bytes += _ENTRY_BYTES + len(key_bytes) + (0 if data is None else len(data))


def decoded(stream: SideStream, message: RawMessage) -> tuple[Any, Any]:
    """The key and value of a message. Raises SerdeError."""
    _, _, key_bytes, data, *_ = message
    place = side_input_place(stream.stream)
    key = value = None
    if key_bytes is not None:
        try:
            key = _decoded(stream.key_serde, key_bytes, message)
        except Exception as error:
            raise place.unreadable("key", stream.key_serde, key_bytes, error) from error
    if data is not None:
        try:
            value = _decoded(stream.value_serde, data, message)
        except Exception as error:
            raise place.unreadable("value", stream.value_serde, data, error, key) from error
    return key, value


def _decoded(serde: Serde[Any], data: bytes, message: RawMessage) -> Any:
    return (
        serde.from_message(data, check_readable(headers_in(message))) if serde.reads_headers else serde.from_bytes(data)
    )


class _Origins:
    """The origins of messages of one partition, for their envelopes."""

    __slots__ = ("_messages", "_ssp", "offsets", "timestamps")

    def __init__(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        self._ssp = ssp
        self._messages = messages
        self.offsets = [message[0] for message in messages]
        self.timestamps = [message[1] for message in messages]

    def ssp(self, row: int) -> SystemStreamPartition:
        return self._ssp

    def headers(self, row: int) -> Headers:
        return check_readable(headers_in(self._messages[row]))


class _ReadOnlyStore(StoreLayer):
    """The read-only store that a processor gets."""

    def __init__(self, inner: TaskStore) -> None:
        super().__init__(inner)

    def begin(self, time_ms: int = 0) -> Overlay:
        raise AssertionError("the processor does not begin anything")

    def put(self, key: Any, value: Any) -> Never:
        raise ConfigError(
            f"store `{self.name}` can only be read in a processor of its side inputs: return the entries to be "
            "written, as (key, value); a value of None deletes the key"
        )

    def put_all(self, entries: Mapping[Any, Any]) -> Never:
        self.put(None, None)

    def delete(self, key: Any) -> Never:
        self.put(key, None)

    def delete_all(self, keys: Iterable[Any]) -> Never:
        self.put(None, None)


class OwnEntries(SideEntries):
    """Entries of the messages that belong to a task; `inner` makes them."""

    def __init__(self, part: SidePart, inner: SideEntries) -> None:
        super().__init__()
        self._part = part
        self._inner = inner

    @property
    def changes(self) -> Changes:
        return self._inner.changes

    def begin(self, content: Content, *, written: bool) -> None:
        self._inner.begin(content, written=written)
        self.size_bytes = 0

    def add(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        count = self._part.spread_of(ssp)
        if count is not None:
            messages = self._own(ssp, messages, count)
        if messages:
            self._inner.add(ssp, messages)
        self.size_bytes = self._inner.size_bytes

    def _own(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage], partitions: int) -> list[RawMessage]:
        """The messages of this task. Raises MessageFailedError for a key that belongs to a task which does not read
        this partition."""
        task, tasks = self._part.task, self._part.tasks
        common = gcd(partitions, tasks)
        keys = pa.array([message[2] for message in messages], pa.large_binary())
        own = []
        for index, (message, belongs) in enumerate(zip(messages, partitions_of(keys, tasks).tolist(), strict=True)):
            if message[2] is None:
                belongs = ssp.partition % tasks
            if belongs % common != ssp.partition % common:
                raise MessageFailedError(self._part, ssp, index, message, _misplaced(ssp, partitions, tasks))
            if belongs == task:
                own.append(message)
        return own


def _misplaced(ssp: SystemStreamPartition, partitions: int, tasks: int) -> ConfigError:
    why = f"spreads the stream over its {tasks} tasks"
    if partitions == tasks:
        why = "finds the task of each message behind a `partition_by`: a join would not find this key"
    return ConfigError(
        f"the key of this message does not belong to partition {ssp.partition} of the {partitions} of "
        f"`{ssp.system_stream}` by Kafka's hash (murmur2), by which the job {why}. Write the stream with murmur2, as "
        "Java's producers and Penstock do (those of librdkafka, such as confluent_kafka's, need "
        "partitioner=murmur2_random), or give every task all of it, with broadcast=True"
    )
