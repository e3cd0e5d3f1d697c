"""The parts of a rehearsal: the messages that come to each stage, what they were made from, and what changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from xxhash import xxh3_64_intdigest

from penstock.admin.state.serdes import Texts, serde_of
from penstock.api.serdes import Serde
from penstock.api.ssp import SystemStreamPartition
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
