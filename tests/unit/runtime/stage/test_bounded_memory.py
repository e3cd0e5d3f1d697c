"""A stage, an attempt and a sink hold a bounded number of bytes at once, however large messages are."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.errors import RetryableError
from penstock.graph.topology import plan_topology
from penstock.runtime.messages import outlet
from penstock.runtime.messages.packet import Packet, PacketKind, decode_messages
from penstock.runtime.messages.spool import Spool
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.pace import AttemptPace
from penstock.runtime.stage.sink import OutputWriters, SinkAttempts
from penstock.runtime.stage.source import InputReaders, run_source
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.memory import MemorySystem

IN, OUT = (SystemStreamPartition("m", stream, 0) for stream in ("i", "o"))
SETTINGS = RuntimeSettings("a", 1, {"m.o": 1})


@pytest.fixture
def system() -> MemorySystem:
    system = MemorySystem("m")
    for stream in ("i", "o"):
        system.admin().create_stream(stream, 1)
    return system


def append(system: MemorySystem, *values: bytes) -> None:
    writer = system.writer(None)
    writer.append(IN, [(0, None, value) for value in values])
    writer.close()


def source(system: MemorySystem, app: ps.StreamApplication, messages: int) -> Iterator[Packet]:
    ranges, readers = [(0, Portion(OffsetRange(IN, 0, messages), messages))], InputReaders({"m": system})
    return run_source(plan_topology(app.graph()), SETTINGS, Batch(1, 1, 0), 0, ranges, readers)


def values_of(packets: list[Packet]) -> list[Any]:
    found = [decode_messages(p.payload) for p in packets if p.kind == PacketKind.DATA and p.payload is not None]
    return [value for messages in found for value in messages.column(1).to_pylist()]


def test_a_source_sends_large_messages_before_it_has_many(system: MemorySystem) -> None:
    app = ps.StreamApplication("a")
    app.input("m.i", value=ps.Bytes()).send_to(app.output("m.o", value=ps.Bytes()))
    values = [bytes([n]) * (2 << 20) for n in range(20)]
    append(system, *values)
    packets = list(source(system, app, 20))
    sizes = [len(p.payload) for p in packets if p.kind == PacketKind.DATA and p.payload is not None]
    assert values_of(packets) == values
    assert len(sizes) == 5
    assert max(sizes) < outlet.FLUSH_BYTES + (3 << 20)


def test_messages_that_become_large_are_sent_before_there_are_many(system: MemorySystem) -> None:
    """Once it is seen that a message becomes 100 kB, fewer are processed between two packets."""
    made = sent = most = 0

    def enlarge(value: bytes) -> bytes:
        nonlocal made
        made += 1
        return value * 100_000

    app = ps.StreamApplication("a")
    app.input("m.i", value=ps.Bytes()).map(enlarge).send_to(app.output("m.o", value=ps.Bytes()))
    append(system, *(b"x" for _ in range(3000)))
    for packet in source(system, app, 3000):
        if packet.kind == PacketKind.DATA and sent:
            most = max(most, made - sent)
        sent += packet.messages if packet.kind == PacketKind.DATA else 0
    assert sent == made == 3000
    assert most <= 1024 + 200


@given(st.integers(1, 1024), st.integers(0, 1 << 34))
def test_pieces_stay_between_one_message_and_the_most(messages: int, sent_bytes: int) -> None:
    pace = AttemptPace(messages)
    pace.sent(sent_bytes)
    assert 1 <= pace.at_once <= 1024
    if sent_bytes > outlet.FLUSH_BYTES:
        assert pace.at_once <= messages
    else:
        assert pace.at_once >= messages


@given(st.lists(st.binary(max_size=300)), st.integers(0, 1000))
def test_a_spool_gives_back_what_it_was_given(payloads: list[bytes], memory_bytes: int) -> None:
    with closing(Spool(memory_bytes)) as waiting:
        kept = [waiting.put(pa.py_buffer(payload)) for payload in payloads]
        assert [bytes(waiting.get(place)) for place in reversed(kept)] == payloads[::-1]
        assert sum(len(k) for k in kept if isinstance(k, pa.Buffer)) <= memory_bytes


def test_a_full_disk_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("penstock.runtime.messages.spool.tempfile.TemporaryFile", full)
    with closing(Spool(10)) as waiting, pytest.raises(RetryableError, match="No space left"):
        waiting.put(b"x" * 11)


def test_a_sink_writes_what_waited_in_a_file_in_order(system: MemorySystem) -> None:
    app = ps.StreamApplication("a")
    app.input("m.i", value=ps.Bytes()).send_to(app.output("m.o", value=ps.Bytes()))
    values = [bytes([n]) * (1 << 20) for n in range(40)]
    append(system, *values)
    topology = plan_topology(app.graph())
    waiting = Spool(10 << 20)
    sinks = SinkAttempts(topology, SETTINGS, Batch(1, 1, 0), [0], waiting)
    with closing(sinks), closing(OutputWriters({"m": system}, WriterIdentity("a", 1))) as writers:
        for packet in source(system, app, 40):
            if packet.stage == topology.sink:
                sinks.accept(packet)
        assert waiting.level().end > 20 << 20
        (packet,) = sinks.write(writers)
    report = Report.decode(bytes(packet.payload or b""))
    assert (report.messages, report.written) == (40, {"m.o": 40})
    reader = system.reader()
    assert [m[3] for chunk in reader.read(OffsetRange(OUT, 0, 40), 100) for m in chunk] == values
