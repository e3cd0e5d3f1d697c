"""Packets for an outbox, what is to come of them, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import pyarrow as pa

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.graph.topology import Topology, plan_topology
from penstock.outbox.task import Outbox, OutboxAttempt
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, Packet, PacketKind, encode_messages
from penstock.system.base import OffsetRange, RawRecord, System
from tests.support.streams.trailers import trailer


@cache
def once_topology(streams: tuple[str, ...] = ("m.out",)) -> Topology:
    """One stage that sends to exactly-once outputs; channel n is that of the nth stream."""
    app = ps.StreamApplication("a")
    source = app.input("m.in")
    for stream in streams:
        source.send_to(app.output(stream))
    return plan_topology(app.graph(), None, frozenset(map(SystemStream.parse, streams)))


def record(number: int, size: int = 10) -> RawRecord:
    """A message that says which one it is; some have no key, others no value."""
    key = None if number % 7 == 3 else b"k%d" % number
    value = None if number % 5 == 4 else b"%d." % number + bytes(size)
    return 1000 + number, key, value


def payload(records: Sequence[RawRecord]) -> pa.Buffer:
    """As a packet has them."""
    times, keys, values = zip(*records, strict=True)
    zeros = [0] * len(records)
    columns = [
        pa.array(column, field.type)
        for column, field in zip((keys, values, times, zeros, zeros), MESSAGE_SCHEMA, strict=True)
    ]
    return encode_messages(pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA))


def packets_of(
    source: tuple[int, int], parts: Iterable[tuple[int, int, Sequence[RawRecord]]], token: str, stage: int = 1
) -> list[Packet]:
    """The packets that an attempt of (stage, task) sends to task 0: a packet for each (channel, partition, messages),
    and its trailer."""
    sent = [
        Packet(0, stage, PacketKind.DATA, *source, token, channel, partition, seq, len(records), payload(records))
        for seq, (channel, partition, records) in enumerate(parts)
    ]
    messages = sum(packet.messages for packet in sent)
    return [*sent, trailer(source, len(sent), messages, token=token, stage=stage)]


def attempt_on(outbox: Outbox, batch: int, tasks: int = 1, topology: Topology | None = None) -> OutboxAttempt:
    """An attempt of task 0."""
    return OutboxAttempt(topology or once_topology(), 0, tasks, f"token-{batch}", Batch(batch, 1, 0), outbox)


def bring(outbox: Outbox, batch: int, *packets: tuple[int, Sequence[RawRecord]]) -> OutboxAttempt:
    """An attempt with a packet for each (partition, messages), applied."""
    attempt = attempt_on(outbox, batch)
    for packet in packets_of((0, 0), [(0, partition, records) for partition, records in packets], f"s-{batch}"):
        attempt.accept(packet)
    attempt.finish()
    attempt.apply()
    return attempt


def read_all(system: System, stream: str = "out") -> dict[int, list[RawRecord]]:
    """By partition, everything that readers see."""
    found: dict[int, list[RawRecord]] = {}
    for partition, ends in system.admin().offsets(stream).items():
        ssp = SystemStreamPartition(system.name, stream, partition)
        pages = system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000)
        found[partition] = [(time, key, value) for page in pages for _, time, key, value, *_ in page]
    return found
