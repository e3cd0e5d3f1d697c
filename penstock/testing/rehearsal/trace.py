"""The parts of a rehearsal: the messages that come to each stage, what they were made from, and what changes.

How two runs differ is here too: in operators that did not do the same twice, and in the messages that they send. So are
stops of a replay in a debugger, in the application's code.
"""

from __future__ import annotations

import heapq
import pdb  # noqa: T100 - the user asks for it
import pickle
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

from penstock.admin.state.serdes import Texts, serde_of
from penstock.api.serdes import Serde
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import Interrupted
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import StoreSpec
from penstock.graph.topology import Channel, Topology
from penstock.runtime.context import SspTable
from penstock.runtime.messages.packet import Packet, decode_columns, decode_messages, split_origin
from penstock.runtime.operators.base import KeyInEntry, operator_of
from penstock.runtime.stage.attempt import PacketAttempt
from penstock.runtime.stage.task_instance import TaskAttempt, TaskInstance
from penstock.state.stores.timed_entries import HEADER, INDEX, MEMBERS_END, application_key

Origin: TypeAlias = tuple[SystemStreamPartition, int]
"""An input message: its partition and its offset."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message that comes to a stage, or that leaves the job."""

    channel: Channel
    task: int
    partition: int
    key: bytes | None
    value: Any
    """Bytes; a dict, where messages stay in columns."""
    timestamp: int
    origin: Origin | None
    """The input message that it was made from; None: it fired."""

    @property
    def content(self) -> bytes:
        """The same for equal messages."""
        value = self.value if isinstance(self.value, bytes | None) else repr(self.value).encode()
        parts = (b"-" if part is None else b"%d:%s" % (len(part), part) for part in (self.key, value))
        return b"".join(parts)

    @property
    def digest(self) -> int:
        """64 bits of the content."""
        return xxh3_64_intdigest(self.content)


def rows_of(topology: Topology, packets: Sequence[Packet]) -> Iterator[Row]:
    """The messages of packets, in their order."""
    ssps = SspTable.of(topology.graph)
    for packet in packets:
        channel = topology.channels[packet.channel]
        places: Sequence[Sequence[int]]
        if channel.output is not None:
            keys, values, *places = (each.to_pylist() for each in decode_messages(packet.payload or b"").columns[:5])
        else:
            columns = decode_columns(packet, channel.carried_serde)
            keys, values = columns.keys.to_pylist(), columns.values.to_pylist()
            places = [each.tolist() for each in columns.places]
        for key, value, time, code, offset in zip(keys, values, *places, strict=True):
            origin = None if split_origin(code)[0] < 0 or offset < 0 else (ssps[code], offset)
            yield Row(channel, packet.dest, packet.partition, key, value, time, origin)


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of a store, before and after."""

    spec: StoreSpec
    task: int
    entry: bytes
    """Its key."""
    key: bytes | None
    """The key of the messages that it belongs to; None: it is not known."""
    key_serde: Serde[Any]
    before: bytes | None
    after: bytes | None

    def as_json(self) -> dict[str, Any]:
        value = self.spec.value_serde
        return {
            "store": self.spec.name,
            "task": self.task,
            "key": shown("key", self.key_serde, self.entry if self.key is None else self.key),
            "before": shown("value", value, self.before),
            "after": shown("value", value, self.after),
        }


class Entries:
    """Finds the message's key in the entries of stores."""

    def __init__(self, topology: Topology) -> None:
        self._found: dict[str, KeyInEntry] = {}
        for spec in topology.graph.operators:
            operator = operator_of(spec)
            for store in spec.stores:
                if (found := operator.key_in(store)) is not None:
                    self._found.setdefault(store, found)

    def change(self, spec: StoreSpec, task: int, entry: bytes, before: bytes | None, after: bytes | None) -> Change:
        found = self._found.get(spec.name)
        key = None if found is None else found.find(entry)
        serde = spec.key_serde if found is None or key is None else found.serde
        return Change(spec, task, entry, key, serde, before, after)


def changes_of(attempt: TaskAttempt, task: TaskInstance, entries: Entries) -> Iterator[Change]:
    """The entries that an attempt changes, which is not applied yet."""
    if not isinstance(attempt, PacketAttempt):
        return
    specs = {spec.name: spec for spec in attempt.instance.topology.graph.stores}
    for store, overlay in attempt.instance.overlays.items():
        spec = specs[store]
        if spec.side is not None:
            continue
        engine = task.engine(store)
        for key, after in overlay.net.items():
            if spec.ttl is not None and INDEX <= key < MEMBERS_END:
                continue  # times of expiry
            before = engine.get(key)
            if before == after:
                continue
            if spec.ttl is not None:
                key = application_key(key)
                before, after = (None if value is None else value[HEADER:] for value in (before, after))
            yield entries.change(spec, task.task, key, before, after)


@lru_cache(maxsize=256)
def texts_of(what: str, serde: Serde[Any]) -> Texts:
    """The texts of keys or values of a serde. `what`: `key` or `value`."""
    return Texts(what, serde.name, serde_of(serde.name) or serde)


def shown(what: str, serde: Serde[Any], data: Any) -> Any:
    """A key or value as JSON; bytes that have no other form as `0x` and hex."""
    if data is None or not isinstance(data, bytes):
        return data
    found: Mapping[str, Any] = texts_of(what, serde).field("it", data)
    return found["it"] if "it" in found else f"0x{data.hex()}"


_MARKS = 1 << 64


class Marks:
    """Numbers that are the same for the same messages in any order: of each channel, and of the calls of each
    operator's code, if it is watched. A `CallWatch`."""

    def __init__(self) -> None:
        self.channels: dict[int, int] = {}
        self.calls: dict[str, int] = {}

    def add(self, row: Row) -> None:
        """A message that a channel carries."""
        number = row.channel.number
        self.channels[number] = (self.channels.get(number, 0) + row.digest) % _MARKS

    def opens(self, stores: Sequence[Any]) -> None: ...

    def call(self, operator: str, value: Any, stores: Sequence[Any] = ()) -> AbstractContextManager[object]:
        self.calls[operator] = (self.calls.get(operator, 0) + xxh3_64_intdigest(_bytes_of(value))) % _MARKS
        return nullcontext()

    def in_graph(self, graph: ApplicationGraph) -> ApplicationGraph:
        """The application, whose calls are watched."""
        return replace(graph, operators=tuple(operator_of(op).watched(self) for op in graph.operators))


def _bytes_of(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # what cannot be pickled is compared by its text
        return repr(value).encode()


def culprits(topology: Topology, first: Marks, second: Marks) -> tuple[str, ...]:
    """The operators whose code got the same values twice, and behind which something is not the same. Pure."""
    upstream = {op.id: op.fed_by for op in topology.graph.operators}
    found: set[str] = set()
    for channel in topology.channels:
        if first.channels.get(channel.number) != second.channels.get(channel.number):
            found.update(_before((channel.source,), upstream, first.calls, second.calls))
    for operator in _unlike(first.calls, second.calls):
        found.update(_before(upstream[operator], upstream, first.calls, second.calls))
    return tuple(sorted(found))


def _unlike(first: Mapping[str, int], second: Mapping[str, int]) -> set[str]:
    return {each for each in {**first, **second} if first.get(each) != second.get(each)}


def _before(
    operators: Sequence[str], upstream: Mapping[str, Sequence[str]], first: Mapping[str, int], second: Mapping[str, int]
) -> Iterator[str]:
    """The nearest operators with code of the application, among these or before them, that got the same values."""
    for operator in operators:
        if operator not in first and operator not in second:
            yield from _before(upstream[operator], upstream, first, second)
        elif first.get(operator) == second.get(operator):
            yield operator


ROW = np.dtype(
    [("output", "<u4"), ("source", "<u4"), ("key", "<u8"), ("content", "<u8"), ("offset", "<i8"), ("at", "<u8")]
)
_PACKED = struct.Struct("<IIQQqQ")
_BUCKETS = 32
"""The rows are compared in so many parts, by their keys, so that memory is bounded."""
NOTHING = 0xFFFFFFFF
"""No source: a message fired. No output: a run has not sent to it."""
EXAMPLES = 5
"""Differences that are shown, of each output and store."""


class SentRows:
    """Keeps what is sent in two files: a row of fixed size for each message, and keys and values."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        folder.mkdir()
        self._topology = topology
        self.folder = folder
        self._rows: BinaryIO = (folder / "rows").open("wb")
        self._contents: BinaryIO = (folder / "contents").open("wb")
        self._at = 0
        self.outputs: dict[str, int] = {}
        self.sources: list[str] = []
        self._source_of: dict[object, int] = {}
        self.serdes: dict[str, tuple[Any, Any]] = {}

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        for row in rows_of(self._topology, packets):
            if row.channel.output is None:
                continue
            name = str(row.channel.output)
            number = self.outputs.setdefault(name, len(self.outputs))
            self.serdes[name] = (row.channel.key_serde, row.channel.value_serde)
            source, offset = (NOTHING, -1) if row.origin is None else (self._source(row.origin), row.origin[1])
            content = row.content
            digest = xxh3_64_intdigest(content)
            # Messages without keys are compared one by one.
            key = digest if row.key is None else xxh3_64_intdigest(row.key)
            self._rows.write(_PACKED.pack(number, source, key, digest, offset, self._at))
            self._contents.write(struct.pack("<I", len(content)) + content)
            self._at += 4 + len(content)

    def _source(self, origin: Origin) -> int:
        found = self._source_of.get(origin[0])
        if found is None:
            found = self._source_of[origin[0]] = len(self.sources)
            self.sources.append(str(origin[0]))
        return found

    def processed(self, attempt: TaskAttempt, task: TaskInstance) -> None: ...

    def read(self) -> Any:
        """All rows, in the order in which they were sent, not yet in memory."""
        self._rows.close()
        self._contents.close()
        path = self.folder / "rows"
        return np.memmap(path, ROW, "r") if path.stat().st_size else np.empty(0, ROW)

    def content(self, at: int) -> tuple[bytes | None, bytes | None]:
        """The key and the value of a row."""
        with (self.folder / "contents").open("rb") as file:
            file.seek(at)
            (size,) = struct.unpack("<I", file.read(4))
            key, rest = _part(file.read(size))
            return key, _part(rest)[0]


def _part(data: bytes) -> tuple[bytes | None, bytes]:
    """The first part of a `Row.content`, and what is behind it."""
    if data[:1] == b"-":
        return None, data[1:]
    size, _, rest = data.partition(b":")
    return rest[: int(size)], rest[int(size) :]


@dataclass(frozen=True, slots=True)
class First:
    """The first rows of a key that differ: their numbers, and None where there is none."""

    before: int | None
    after: int | None

    @property
    def number(self) -> int:
        return min(each for each in (self.before, self.after) if each is not None)


def compare(both: Sequence[Any], outputs: Sequence[int]) -> tuple[int, list[First]]:
    """The number of keys whose messages differ, and the first rows of some of them. Pure.

    Each bucket has the rows of some keys, so the rows of the two runs are never in memory as a whole.

    Args:
        both: the rows of both runs.
        outputs: the number of one output in each of them.
    """
    count, firsts = 0, list[First]()
    for bucket in range(_BUCKETS):
        numbers = [
            np.flatnonzero((rows["output"] == output) & (rows["key"] >> np.uint64(59) == bucket))
            for rows, output in zip(both, outputs, strict=True)
        ]
        rows = np.concatenate([each[own] for each, own in zip(both, numbers, strict=True)])
        if not len(rows):
            continue
        signs = np.repeat(np.array([1, -1]), [len(own) for own in numbers])
        order = np.lexsort((rows["content"], rows["key"]))
        pairs = rows[order][["key", "content"]]
        starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        unlike = np.add.reduceat(signs[order], starts) != 0
        lengths = np.diff(np.concatenate([starts, [len(rows)]]))
        members = order[np.repeat(unlike, lengths)]
        keys = rows["key"][members]
        count += len(np.unique(keys))
        firsts += _firsts(members, keys, numbers)
        firsts = heapq.nsmallest(EXAMPLES, firsts, key=lambda each: each.number)
    return count, firsts


def _firsts(members: Any, keys: Any, numbers: Sequence[Any]) -> Iterator[First]:
    """The first differing rows of each key. `members`: places among the rows of both, those of `before` first."""
    of_before = len(numbers[0])
    found: dict[int, list[int | None]] = {}
    for side, own in enumerate((members < of_before, members >= of_before)):
        order = np.argsort(members[own])[: 1000 * EXAMPLES]
        for place, key in zip(members[own][order].tolist(), keys[own][order].tolist(), strict=True):
            rows = found.setdefault(key, [None, None])
            if rows[side] is None:
                rows[side] = int(numbers[side][place - side * of_before])
    return (First(before, after) for before, after in found.values())


class _Debugger(pdb.Pdb):
    """Stops in the application's code."""

    def __init__(self) -> None:
        super().__init__(skip=["penstock", "penstock.*"])
        self.left = False
        """The user has left it."""

    def set_quit(self) -> None:
        """Continue, and raise nothing within the application's code, which might handle it as a failure."""
        self.left = True
        self.set_continue()


class Stops:
    """Stops at each call of the application's code while `wanted` is true. A `CallWatch`."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted

    def opens(self, stores: Sequence[Any]) -> None: ...

    def call(self, operator: str, value: Any, stores: Sequence[Any] = ()) -> AbstractContextManager[object]:
        return _Stop(operator) if self._wanted() else nullcontext()

    def in_graph(self, graph: ApplicationGraph) -> ApplicationGraph:
        """The application, whose code stops."""
        return replace(graph, operators=tuple(operator_of(op).watched(self) for op in graph.operators))


class _Stop:
    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._debugger = _Debugger()

    def __enter__(self) -> None:
        print(f"operator `{self._operator}`", file=sys.stderr)
        self._debugger.set_trace()

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        if self._debugger.left:
            raise Interrupted
