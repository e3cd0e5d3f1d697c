"""The objects that hold a commit's unpublished output, and their chunks.

Version 1 of an object is the marker `PENSTOB1`, the length of the index in 4 bytes (little-endian), the index in
MessagePack, and the payloads of the packets, one after the other in the order of the index. The record in the
checkpoint log has the hash of the whole object.

A **chunk** is the least that is published in one atomic step: one or several packets of one output partition. Its
borders are in the index, so each publication of it has the same.

A packet takes about 350 bytes besides its messages, so small packets of a chunk are put into the object as one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, Positive, decoder, decoding
from penstock.errors import CorruptError, IncompatibleError
from penstock.outbox.task import KeptPacket, OutboxSnapshot
from penstock.outbox.wing import OutboxObject, OutputPart
from penstock.runtime.messages.incoming import SpooledPayload
from penstock.runtime.messages.packet import decode_messages, encode_messages, in_one, records_of
from penstock.system.base import RawRecord

CHUNK_BYTES = 1 << 20
CHUNK_MESSAGES = 10_000
"""The limits of a chunk of more than one packet."""
OBJECT_BYTES = 16 << 20
"""An object is full once its payloads reach this size. Its writer and its reader hold the whole object in memory."""
_SMALL_BYTES = 8 << 10
"""Packets of a chunk are joined if their average size is less."""
_FAMILY = b"PENSTOB"
_MARKER = _FAMILY + b"1"
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
            raise IncompatibleError(f"{what} is of a version that this Penstock does not read")
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
