"""Attempts that leave their messages to the last one send what each alone would have sent, in fewer packets."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.graph.topology import Topology, plan_topology
from penstock.runtime.messages import outlet, router
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, Packet, PacketKind, decode_columns, encode_messages
from penstock.runtime.messages.sources import Sources
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.source import InputReaders, ReadProgress, run_sources
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.state.engines.memory import MemoryEngine
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from tests.support.streams.trailers import trailer

TASKS = 3
BATCH = Batch(1, 1, 0)
SETTINGS = RuntimeSettings("a", TASKS, {"m.copies": 4, "m.rows": 4})
Sent = tuple[bytes | None, Any, int, int, int]
"""A message on its way: key, value, timestamp, origin, offset."""

keys = st.sampled_from([None, b"a", b"b", b"c", b"d"])
inputs = st.lists(st.lists(st.tuples(keys, st.integers(0, 99)), max_size=12), min_size=TASKS, max_size=TASKS)


class Count(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


def topology() -> Topology:
    """Channels to the task itself, by key, to an output, and of rows that stay in columns."""
    app = ps.StreamApplication("a")
    app.store("own")
    app.store("keyed")
    messages = app.input("m.i", key=ps.Bytes(), value=ps.Columns(pa.schema({"n": pa.int64()})))
    messages.process(Count, stores=["own"], id="own")
    messages.map(lambda row: row["n"], id="plain").partition_by(str, id="by", key=ps.String()).process(
        Count, stores=["keyed"], id="keyed"
    )
    messages.send_to(app.output("m.copies", key=ps.Bytes(), value=ps.Json()))
    messages.partition_by(ps.col("n"), id="rows", key=ps.Long()).send_to(app.output("m.rows", key=ps.Long()))
    return plan_topology(app.graph())


def system_of(given: list[list[tuple[bytes | None, int]]]) -> MemorySystem:
    system = MemorySystem("m")
    system.admin().create_stream("i", TASKS)
    for task, messages in enumerate(given):
        here = SystemStreamPartition("m", "i", task)
        system.writer(None).append(here, [(n, key, b'{"n": %d}' % n) for n, (key, _) in enumerate(messages)])
    return system


def senders(planned: Topology, stage: int, task: int) -> list[int]:
    return [source for first, source in planned.expected_sources(stage, task, TASKS) if first == 0]


def received(planned: Topology, packets: list[Packet]) -> dict[tuple[int, int], list[Sent]]:
    """The messages for each task and channel, those of each input partition in order. All trailers fit the packets."""
    found: dict[tuple[int, int], list[Sent]] = defaultdict(list)
    for stage in planned.targets_of(0):
        for task in range(TASKS):
            sources = Sources(frozenset((0, task) for task in senders(planned, stage, task)))
            mine = [packet for packet in packets if (packet.stage, packet.dest) == (stage, task)]
            for packet in (ready for each in mine for ready in sources.accept(each)):
                columns = decode_columns(packet, planned.channels[packet.channel].columns or ps.Bytes())
                place = (packet.channel, packet.partition)
                read = columns.keys.to_pylist(), columns.values.to_pylist(), *map(list, columns.places)
                found[place].extend(zip(*read, strict=True))
            sources.check_complete()
    return {place: sorted(messages, key=lambda sent: sent[3]) for place, messages in found.items()}


@given(inputs, st.sampled_from([2, 5, 8192]))
def test_the_same_messages_in_fewer_packets(given: list[list[tuple[bytes | None, int]]], flush: int) -> None:
    planned, system = topology(), system_of(given)
    with patch.object(outlet, "FLUSH_MESSAGES", flush), patch.object(router, "FLUSH_MESSAGES", flush):
        portions = {
            task: [(0, Portion(OffsetRange(SystemStreamPartition("m", "i", task), 0, len(own)), len(own)))]
            for task, own in enumerate(given)
        }
        readers = InputReaders({"m": system})
        alone = [
            packet
            for task, own in portions.items()
            for packet in run_sources(planned, SETTINGS, BATCH, {task: own}, readers, ReadProgress(), {})
        ]
        together = list(run_sources(planned, SETTINGS, BATCH, portions, readers, ReadProgress(), {}))
    assert received(planned, together) == received(planned, alone)
    assert count(together) <= count(alone)
    if flush > TASKS * 12 and all(key is not None for own in given for key, _ in own):
        places = {(p.channel, p.partition) for p in alone if p.kind == PacketKind.DATA}
        assert count(together) == len(places), "one packet for each task or partition"


def from_all(app: ps.StreamApplication, given: list[list[tuple[bytes | None, bytes]]]) -> list[Packet]:
    """The packets of tasks that read these messages, from a partition each."""
    system = MemorySystem("m")
    system.admin().create_stream("i", len(given))
    portions = {}
    for task, messages in enumerate(given):
        here = SystemStreamPartition("m", "i", task)
        system.writer(None).append(here, [(0, key, value) for key, value in messages])
        portions[task] = [(0, Portion(OffsetRange(here, 0, len(messages)), len(messages)))]
    settings = RuntimeSettings("a", len(given), {"m.o": 1})
    readers = InputReaders({"m": system})
    return list(run_sources(plan_topology(app.graph()), settings, BATCH, portions, readers, ReadProgress(), {}))


@pytest.mark.parametrize("first", [b"", b"x" * 300])
def test_packets_stay_below_their_size(first: bytes) -> None:
    app = ps.StreamApplication("a")
    app.input("m.i", key=ps.Bytes(), value=ps.Bytes()).send_to(app.output("m.o", key=ps.Bytes(), value=ps.Bytes()))
    with patch.object(outlet, "MAX_PACKET_BYTES", 1000), patch.object(router, "MAX_PACKET_BYTES", 1000):
        packets = from_all(app, [[(b"k", first)], [(b"k", b"x" * 300)] * 50])
    assert sum(packet.messages for packet in packets if packet.kind == PacketKind.DATA) == 51
    assert max(packet.messages for packet in packets if packet.kind == PacketKind.DATA) <= 3


class Emits(ps.WindowableTask):
    """Emits more at the end of its input than fits into a packet."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...

    def window(self, collector: Any, coordinator: Any) -> None:
        for number in range(50):
            collector.emit(key=b"%d" % number, value=bytes(300))


def test_messages_of_the_end_of_input_count_as_well() -> None:
    app = ps.StreamApplication("a")
    app.store("s")
    emitted = app.input("m.i").process(Emits, stores=["s"], key=ps.Bytes(), value=ps.Bytes())
    emitted.send_to(app.output("m.o", key=ps.Bytes(), value=ps.Bytes()))
    planned, settings = plan_topology(app.graph()), RuntimeSettings("a", 2, {"m.o": 1}, window_ms=1)
    batch, together = Batch(1, 1, 10_000, before_ms=5), router.JointOutput(2)
    with patch.object(outlet, "FLUSH_BYTES", 1000), patch.object(outlet, "MAX_PACKET_BYTES", 1000):
        for task in range(2):
            instance = TaskInstance(task, planned, settings, {"s": MemoryEngine()}, 0)
            attempt = instance.start_attempt(1, new_token(), batch)
            list(attempt.accept(trailer((0, task), dest=task)))
            packets = list(attempt.finish(together))
            assert sum(packet.messages for packet in packets if packet.kind == PacketKind.DATA) == 50


def test_two_channels_to_an_output_keep_their_order() -> None:
    """One of them has a message without a key, and cannot leave it to another task."""
    app = ps.StreamApplication("a")
    output = app.output("m.o", key=ps.Bytes(), value=ps.Bytes())
    messages = app.input("m.i", key=ps.Bytes(), value=ps.Bytes())
    messages.filter(lambda value: value != b"9").map(lambda value: b"X" + value).send_to(output)
    messages.map(lambda value: b"Y" + value).send_to(output)
    packets = from_all(app, [[(b"k", b"1"), (None, b"9")], []])
    data = sorted((packet for packet in packets if packet.kind == PacketKind.DATA), key=lambda each: each.source_task)
    values = [value for packet in data for value in decode_columns(packet, ps.Bytes()).values.to_pylist()]
    assert values == [b"X1", b"Y1", b"Y9"]


def count(packets: list[Packet]) -> int:
    return sum(packet.kind == PacketKind.DATA for packet in packets)


def test_messages_that_nobody_sends_are_not_lost_in_silence() -> None:
    app = ps.StreamApplication("a")
    app.store("s")
    app.input("m.i").process(Count, stores=["s"]).send_to(app.output("m.o"))
    planned, settings = plan_topology(app.graph()), RuntimeSettings("a", 2, {"m.o": 1})
    attempt = TaskInstance(0, planned, settings, {"s": MemoryEngine()}, 0).start_attempt(1, "t", BATCH)
    together = router.JointOutput(2)
    column = pa.RecordBatch.from_arrays(
        [pa.array([part], field.type) for part, field in zip([b'"k"', b"1", 0, 0, 0], MESSAGE_SCHEMA, strict=True)],
        schema=MESSAGE_SCHEMA,
    )
    message = Packet(0, 1, PacketKind.DATA, 0, 0, "s", 0, -1, 0, 1, encode_messages(column))
    for packet in (message, trailer((0, 0), 1, 1, token="s")):
        assert list(attempt.accept(packet)) == []
    assert [packet.kind for packet in attempt.finish(together)] == [PacketKind.REPORT]
    with pytest.raises(ValueError, match="they would be lost"):
        list(together.end())
