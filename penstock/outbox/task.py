"""The outbox of a task: messages for exactly-once outputs, from the End of their batch to the next commit; and the
objects that hold a commit's unpublished output.

Nobody decodes messages on the way: an outbox holds packets as they came. What an attempt brings counts once End
applies the attempt; what a discarded one brought is forgotten.

Version 1 of an object is the marker `PENSTOB1`, the length of the index in 4 bytes (little-endian), the index in
MessagePack, and the payloads of the packets, one after the other in the order of the index. The record in the
checkpoint log has the hash of the whole object. A **chunk** is the least that is published in one atomic step: one or
several packets of one output partition. Its borders are in the index, so each publication of it has the same. A
packet takes about 350 bytes besides its messages, so small packets of a chunk are put into the object as one.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, Positive, decoder, decoding, unread_format
from penstock.batch.batch import Batch
from penstock.errors import ContainerLostError, CorruptError
from penstock.graph.topology import Topology
from penstock.outbox.wing import OutboxObject, OutputPart
from penstock.runtime.messages.incoming import DiscardedAttemptError, Sources, Spool, SpooledPayload
from penstock.runtime.messages.packet import Packet, decode_messages, encode_messages, in_one, records_of
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.operators.base import Step
from penstock.runtime.reports import Report
from penstock.runtime.stage.task_instance import KeptAttempt, KeptOutput
from penstock.system.base import RawRecord

MEMORY_BYTES = 64 << 20
"""Limit of the memory of all outboxes of a container. Messages beyond it wait in files."""
_LEAST_MEMORY_BYTES = 1 << 20


class KeptPacket(NamedTuple):
    """One packet's messages."""

    messages: int
    size_bytes: int
    payload: SpooledPayload


@dataclass(frozen=True, slots=True)
class OutboxSnapshot:
    """The messages that a commit takes from an outbox. Its holder closes it."""

    task: int
    parts: Mapping[SystemStreamPartition, Sequence[KeptPacket]]
    """Output partition → its packets, in the order of their messages; no partition without packets."""
    spool: Spool
    """Holds the payloads. Used by one thread at a time."""

    def close(self) -> None:
        self.spool.close()


class Outbox(KeptOutput):
    """Exactly-once output of one task, between commits. Used by the threads of attempts, of End and of commits."""

    def __init__(self, task: int, memory_bytes: int = MEMORY_BYTES, folder: str | None = None) -> None:
        """`memory_bytes`: messages beyond it wait in a file without a name, in `folder`."""
        self._task = task
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._lock = threading.Lock()
        self._begin()

    @classmethod
    def of_container(cls, task: int, tasks: int, folder: str) -> Outbox:
        """An outbox with its share of the memory of a container that has `tasks` tasks."""
        return cls(task, max(_LEAST_MEMORY_BYTES, MEMORY_BYTES // tasks), folder)

    def _begin(self) -> None:
        self._spool = Spool(self._memory_bytes, self._folder)
        self._parts: dict[SystemStreamPartition, list[KeptPacket]] = {}
        self._kept = self._spool.level()
        """The level of the spool up to the last applied attempt."""
        self.size_bytes = 0
        """The size of the applied packets."""
        self._writing = 0
        """Attempts that may still put packets, or are neither applied nor dropped yet."""

    def begin_attempt(self, topology: Topology, tasks: int, token: str, batch: Batch) -> OutboxAttempt:
        return OutboxAttempt(topology, self._task, tasks, token, batch, self)

    def start(self) -> Spool:
        """Begin an attempt. Returns the spool for its packets, which it may use until it is applied or dropped."""
        with self._lock:
            self._writing += 1
            return self._spool

    def put(self, spool: Spool, payload: bytes | pa.Buffer) -> SpooledPayload:
        """Put the payload of an attempt into its spool.

        Raises:
            DiscardedAttemptError: a commit has begun since, so the attempt is of no batch that counts.
            RetryableError: the disk is full or failing.
        """
        with self._lock:
            if spool is not self._spool:
                raise DiscardedAttemptError(f"a commit of task {self._task} has begun since the attempt did")
            kept = spool.put(payload)
        return bytes(kept) if isinstance(kept, pa.Buffer) else kept  # a buffer is part of a larger one

    def apply(self, spool: Spool, parts: Mapping[SystemStreamPartition, Sequence[KeptPacket]]) -> int:
        """Append the packets of an attempt to the outbox, and forget those of the other attempts. Returns their
        size.

        Nothing is written here, so that nothing can fail half-way.
        """
        with self._lock:
            if spool is not self._spool:
                raise ContainerLostError(f"an attempt of the outbox of task {self._task} began before the last commit")
            size = 0
            for ssp, packets in parts.items():
                self._parts.setdefault(ssp, []).extend(packets)
                for packet in packets:
                    size += packet.size_bytes
                    self._kept = spool.level_with(self._kept, packet.payload)
            self._end_of_one(spool)
            self.size_bytes += size
            return size

    def drop(self, spool: Spool) -> None:
        with self._lock:
            self._end_of_one(spool)

    def _end_of_one(self, spool: Spool) -> None:
        if spool is self._spool:
            self._writing -= 1
            if not self._writing:
                spool.cut(self._kept)

    def take(self) -> OutboxSnapshot | None:
        """Take the packets applied since the last call; None if there are none. Called between two batches, as every
        commit begins."""
        with self._lock:
            if not self._parts:
                return None
            taken = OutboxSnapshot(self._task, self._parts, self._spool)
            self._begin()
            return taken

    def close(self) -> None:
        with self._lock:
            self._spool.close()
            self._parts.clear()


class OutboxAttempt(KeptAttempt):
    """One execution of the outbox stage. Keeps its packets in the order of their stage, task and sequence."""

    step: Step | None = None
    """None: nothing happens here without a message."""
    processed = process_ns = 0
    """Its messages were processed where they were made."""
    operator = ""

    def __init__(self, topology: Topology, task: int, tasks: int, token: str, batch: Batch, outbox: Outbox) -> None:
        if topology.outbox is None:
            raise ValueError("a topology without exactly-once outputs has no outbox")
        self.stage = topology.outbox
        self.task = task
        self.token = token
        self.batch = batch
        self._topology = topology
        self._sources = Sources(topology.expected_sources(self.stage, task, tasks))
        self._outbox = outbox
        self._spool: Spool | None = outbox.start()
        self._packets: list[tuple[Packet, KeptPacket]] = []
        """Packets without their payloads, and where each payload is."""
        self._messages = 0

    def progress(self) -> object:
        """A value that changes with every packet."""
        return len(self._packets)

    def describe(self) -> str:
        return "output that is kept for the next commit"

    def accept(self, packet: Packet) -> tuple[Packet, ...]:
        """Keep a packet. Raises DiscardedAttemptError; RetryableError if the disk is full or failing."""
        for ready in self._sources.accept(packet):
            if ready.payload is None or self._spool is None:
                raise ValueError(f"a data packet of channel {ready.channel} has no messages, or came too late")
            if self.batch.quiet and self._topology.channels[ready.channel].is_output:
                continue
            kept = KeptPacket(ready.messages, len(ready.payload), self._outbox.put(self._spool, ready.payload))
            self._packets.append((ready._replace(payload=None), kept))
            self._messages += ready.messages
        return ()

    def finish(self, together: JointOutput | None = None) -> tuple[Packet, ...]:
        """The attempt's report. Raises DiscardedAttemptError unless all packets have come."""
        self._sources.check_complete()
        written: dict[str, int] = {}
        if not self._sources.failed:
            for packet, _ in self._packets:
                name = str(self._topology.channels[packet.channel].output)
                written[name] = written.get(name, 0) + packet.messages
        report = Report(
            self.stage,
            self.task,
            self.token,
            self._sources.marks(),
            messages=sum(written.values()),
            written=written,
            upstream_failed=self._sources.failed,
        )
        return (report.packet(),)

    def apply(self) -> int:
        """Move the packets into the outbox: End names this attempt. Returns their size."""
        parts: dict[SystemStreamPartition, list[KeptPacket]] = {}
        for packet, kept in sorted(self._packets, key=lambda p: (p[0].source_stage, p[0].source_task, p[0].seq)):
            output = self._topology.channels[packet.channel].output
            if output is None:
                raise ValueError(f"packet of channel {packet.channel} is not for an output")
            ssp = SystemStreamPartition(output.system, output.stream, packet.partition)
            parts.setdefault(ssp, []).append(kept)
        spool, self._spool, self._packets = self._spool, None, []
        if spool is None:
            raise ValueError("an attempt of an outbox is applied once")
        return self._outbox.apply(spool, parts)

    def close(self) -> None:
        """Discard the packets, unless they were applied."""
        spool, self._spool, self._packets = self._spool, None, []
        if spool is not None:
            self._outbox.drop(spool)


CHUNK_BYTES = 1 << 20
CHUNK_MESSAGES = 10_000
"""The limits of a chunk of more than one packet."""
OBJECT_BYTES = 16 << 20
"""An object is full once its payloads reach this size. Its writer and its reader hold the whole object in memory."""
_SMALL_BYTES = 8 << 10
"""Packets of a chunk are joined if their average size is less."""
_FAMILY, _VERSION = b"PENSTOB", "1"
_MARKER = _FAMILY + _VERSION.encode()
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of one output partition that become readable together."""

    ssp: SystemStreamPartition
    number: int
    """Numbered from 0 within its record, in the order of publication."""
    messages: int
    size_bytes: int
    payloads: tuple[SpooledPayload, ...]


@dataclass(frozen=True, slots=True)
class ObjectContents:
    """A readable object: just made, or read from the object store."""

    key: str
    chunks: tuple[Chunk, ...]
    """In the order of publication: partition by partition."""
    payload: Callable[[SpooledPayload], bytes | pa.Buffer]

    def records(self, chunk: Chunk) -> Iterator[RawRecord]:
        """The messages of a chunk, decoded packet by packet. Raises CorruptError, or RetryableError if a disk fails."""
        for place in chunk.payloads:
            payload = self.payload(place)
            try:
                messages = decode_messages(payload)
            except CorruptError as error:
                what = f"object `{self.key}` of the outbox is damaged in chunk {chunk.number} of `{chunk.ssp}`"
                raise CorruptError(f"{what}: {error}") from error
            yield from records_of(messages)


@dataclass(frozen=True, slots=True)
class _ChunkIndex:
    messages: Positive
    sizes: list[Positive]


@dataclass(frozen=True, slots=True)
class _PartIndex:
    system: str
    stream: str
    partition: Count
    first: Count
    """The number of the first chunk: a partition may continue from object to object."""
    chunks: list[_ChunkIndex]


def objects_of(taken: OutboxSnapshot, key_of: Callable[[int], str]) -> Iterator[ObjectContents]:
    """Cut the messages of a commit into objects, which read from its spool.

    Args:
        key_of: the key of the object with this number, from 0.
    """
    chunks: list[Chunk] = []
    size, number = 0, 0
    for ssp in sorted(taken.parts):
        for chunk in _cut(ssp, taken.parts[ssp]):
            chunks.append(chunk)
            size += chunk.size_bytes
            if size >= OBJECT_BYTES:
                yield ObjectContents(key_of(number), tuple(chunks), taken.spool.get)
                chunks, size, number = [], 0, number + 1
    if chunks:
        yield ObjectContents(key_of(number), tuple(chunks), taken.spool.get)


def _cut(ssp: SystemStreamPartition, packets: Sequence[KeptPacket]) -> Iterator[Chunk]:
    number, messages, size = 0, 0, 0
    payloads: list[SpooledPayload] = []
    for packet in packets:
        if payloads and (messages + packet.messages > CHUNK_MESSAGES or size + packet.size_bytes > CHUNK_BYTES):
            yield Chunk(ssp, number, messages, size, tuple(payloads))
            number, messages, size, payloads = number + 1, 0, 0, []
        payloads.append(packet.payload)
        messages += packet.messages
        size += packet.size_bytes
    if payloads:
        yield Chunk(ssp, number, messages, size, tuple(payloads))


def encode(contents: ObjectContents, task: int) -> tuple[OutboxObject, bytes]:
    """An object's entry in the record, and its bytes. Raises RetryableError if a disk fails."""
    index: dict[SystemStreamPartition, _PartIndex] = {}
    payloads: list[bytes | pa.Buffer] = []
    for chunk in contents.chunks:
        ssp = chunk.ssp
        own = _joined([contents.payload(place) for place in chunk.payloads])
        payloads += own
        part = index.setdefault(ssp, _PartIndex(ssp.system, ssp.stream, ssp.partition, chunk.number, []))
        part.chunks.append(_ChunkIndex(chunk.messages, [len(payload) for payload in own]))
    head = msgspec.msgpack.encode(list(index.values()))
    data = b"".join([_MARKER, _LENGTH.pack(len(head)), head, *payloads])
    return OutboxObject(contents.key, task, len(data), _hash(data), _parts(contents.chunks)), data


def _joined(payloads: list[bytes | pa.Buffer]) -> list[bytes | pa.Buffer]:
    """The same messages in the same order, in one packet if the packets are small."""
    if len(payloads) == 1 or sum(map(len, payloads)) >= _SMALL_BYTES * len(payloads):
        return payloads
    return [encode_messages(in_one([decode_messages(payload) for payload in payloads]))]


def decode(named: OutboxObject, data: bytes) -> ObjectContents:
    """The object that a record names, without the partitions that the record does not name.

    Raises:
        CorruptError: it is not that object any more.
        IncompatibleError: a newer Penstock wrote it.
    """
    what = f"object `{named.key}` of the outbox"
    if (len(data), _hash(data)) != (named.size_bytes, named.sha256):
        raise CorruptError(
            f"{what} is damaged: its {len(data):,} bytes are not the {named.size_bytes:,} with the hash that the "
            "checkpoint log names"
        )
    if not data.startswith(_MARKER):
        if data.startswith(_FAMILY):
            raise unread_format(what, data[len(_FAMILY) : len(_MARKER)].decode("ascii", "replace"), _VERSION)
        raise CorruptError(f"{what} is damaged: it does not begin with `{_MARKER.decode()}`")
    with decoding(f"{what} is damaged"):
        start = len(_MARKER) + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, len(_MARKER))[0]
        index = decoder(list[_PartIndex]).decode(memoryview(data)[start:end])
        chunks = tuple(_chunks(index, pa.py_buffer(data), end))
    is_whole = end + sum(chunk.size_bytes for chunk in chunks) == len(data)
    if not (is_whole and named.parts.items() <= _parts(chunks).items()):
        raise CorruptError(f"{what} is damaged: it has other partitions or chunks than the checkpoint log names")
    return ObjectContents(named.key, tuple(each for each in chunks if each.ssp in named.parts), _as_it_is)


def _chunks(index: Sequence[_PartIndex], data: pa.Buffer, start: int) -> Iterator[Chunk]:
    for part in index:
        ssp = SystemStreamPartition(part.system, part.stream, part.partition)
        for number, chunk in enumerate(part.chunks, part.first):
            payloads: list[SpooledPayload] = []
            for size in chunk.sizes:
                payloads.append(data.slice(start, size))
                start += size
            yield Chunk(ssp, number, chunk.messages, sum(chunk.sizes), tuple(payloads))


def _parts(chunks: Sequence[Chunk]) -> Mapping[SystemStreamPartition, OutputPart]:
    found: dict[SystemStreamPartition, OutputPart] = {}
    for chunk in chunks:
        before = found.get(chunk.ssp, OutputPart(0, 0))
        found[chunk.ssp] = OutputPart(before.chunks + 1, before.messages + chunk.messages)
    return found


def _as_it_is(payload: SpooledPayload) -> bytes | pa.Buffer:
    if not isinstance(payload, bytes | pa.Buffer):
        raise TypeError("the payloads of an object that was read are in memory")
    return payload


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
