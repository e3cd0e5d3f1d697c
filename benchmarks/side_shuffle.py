"""Messages through one Spark shuffle in several forms: what runs in the side's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession

from benchmarks.common import DRIVER_MEMORY
from penstock.runtime.messages.outlet import FLUSH_MESSAGES
from penstock.runtime.messages.packet import (
    MESSAGE_SCHEMA,
    Kind,
    Packet,
    decode_messages,
    encode_messages,
    from_batch,
    split_by_size,
    to_batch,
)
from penstock.spark.batches.packet_rdd import PacketRdd
from penstock.spark.session.session import create_session
from penstock.system.partitioner import partitions_of

KEY_BYTES, VALUE_BYTES = 10, 34
"""With a timestamp and an offset of 8 bytes each, 60 bytes a message."""
ROW_SCHEMA = "dest int, key binary, value binary, timestamp long, offset long"
_ROW_ARROW = pa.schema(
    [
        pa.field("dest", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("offset", pa.int64()),
    ]
)
PACKET_ROW_SCHEMA = (
    "dest int, stage int, kind int, source_stage int, source_task int, token string, channel int, partition int, "
    "seq int, messages int, payload binary"
)
RESULT_SCHEMA = "messages long, offsets long"
Batches = Iterator[pa.RecordBatch]


@lru_cache(maxsize=1)
def _chunk() -> pa.RecordBatch:
    """As many messages as Penstock collects before it makes packets of them; made once per worker."""
    random = np.random.default_rng(7)
    keys = [b"key-%06d" % n for n in random.integers(0, 100_000, FLUSH_MESSAGES)]
    values = [random.bytes(VALUE_BYTES) for _ in keys]
    numbers = pa.array(range(FLUSH_MESSAGES), pa.int64())
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), numbers, numbers, numbers]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def _chunks(messages: int) -> Batches:
    for start in range(0, messages, FLUSH_MESSAGES):
        yield _chunk().slice(0, min(FLUSH_MESSAGES, messages - start))


@dataclass(frozen=True, slots=True)
class RowWriter:
    """First stage, row-wise: every message becomes a Spark row."""

    messages: int
    tasks: int

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for _ in range(batch.num_rows):
                for chunk in _chunks(self.messages):
                    dest = pa.array(partitions_of(chunk.column("key"), self.tasks).astype(np.int32))
                    columns = [dest, *(chunk.column(name) for name in ("key", "value", "timestamp", "offset"))]
                    yield pa.RecordBatch.from_arrays(columns, schema=_ROW_ARROW)


def read_rows(batches: Batches) -> Batches:
    """Second stage, row-wise."""
    yield _result((batch.num_rows, batch.column("offset")) for batch in batches)


@dataclass(frozen=True, slots=True)
class PacketWriter:
    """First stage, packed: the messages of a chunk for one task become one packet."""

    messages: int
    tasks: int

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from self.packets(task)

    def packets(self, task: int) -> Batches:
        """What one task of the first stage sends."""
        for group in split_by_size(self._packets(task)):
            yield to_batch(group)

    def _packets(self, task: int) -> Iterator[Packet]:
        for number, chunk in enumerate(_chunks(self.messages)):
            targets = partitions_of(chunk.column("key"), self.tasks)
            by_target = chunk.take(pa.array(np.argsort(targets, kind="stable")))
            start = 0
            for dest, length in enumerate(np.bincount(targets, minlength=self.tasks).tolist()):
                part = by_target.slice(start, length)
                start += length
                payload = encode_messages(part)
                yield Packet(dest, 1, Kind.DATA, 0, task, "token", 0, dest, number, length, payload)


def read_packets(batches: Batches) -> Batches:
    """Second stage, packed."""
    found = (
        decode_messages(packet.payload)
        for batch in batches
        for packet in from_batch(batch)
        if packet.payload is not None
    )
    yield _result((messages.num_rows, messages.column("offset")) for messages in found)


@dataclass(frozen=True, slots=True)
class FrameWriter:
    """First stage, as packets in frames."""

    packed: PacketWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        yield from self.packed.packets(context.partitionId())


def read_frames(batches: Iterable[pa.RecordBatch]) -> Batches:
    """Second stage, as packets in frames; its result travels in a packet's fields."""
    (result,) = read_packets(iter(batches))
    messages, offsets = (result.column(name)[0].as_py() for name in ("messages", "offsets"))
    yield to_batch([Packet(0, -1, Kind.REPORT, 1, 0, str(offsets), 0, 0, 0, messages, None)])


def _result(parts: Iterator[tuple[int, pa.Array]]) -> pa.RecordBatch:
    """How many messages came, and the sum of their offsets."""
    count = offsets = 0
    for messages, column in parts:
        count += messages
        offsets += pc.sum(column).as_py() or 0
    return pa.RecordBatch.from_pydict({"messages": [count], "offsets": [offsets]})


Results = list[tuple[int, int]]
"""Of every task: how many messages came, and the sum of their offsets."""


def _by_rows(spark: SparkSession, own: int, tasks: int) -> Results:
    return _by_sql(spark, tasks, RowWriter(own, tasks), ROW_SCHEMA, read_rows)


def _by_packed_rows(spark: SparkSession, own: int, tasks: int) -> Results:
    return _by_sql(spark, tasks, PacketWriter(own, tasks), PACKET_ROW_SCHEMA, read_packets)


def _by_sql(
    spark: SparkSession,
    tasks: int,
    writer: Callable[[Batches], Batches],
    schema: str,
    reader: Callable[[Batches], Batches],
) -> Results:
    frame = (
        spark.range(0, tasks, 1, tasks)
        .mapInArrow(writer, schema)
        .repartitionById(tasks, "dest")
        .mapInArrow(reader, RESULT_SCHEMA)
    )
    return [(row.messages, row.offsets) for row in frame.collect()]


def _by_frames(spark: SparkSession, own: int, tasks: int) -> Results:
    first = PacketRdd.empty(spark.sparkContext, tasks).map_partitions(FrameWriter(PacketWriter(own, tasks)))
    second = first.exchange(range(tasks), tasks).map_partitions(read_frames)
    return [(packet.messages, int(packet.token)) for batch in second.collect() for packet in from_batch(batch)]


FORMS = {"row-wise": _by_rows, "packed rows": _by_packed_rows, "frames": _by_frames}


def shuffle(parameters: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every round after the warm-up, and of rounds without messages: what the job itself costs."""
    form, tasks, messages = parameters["form"], parameters["tasks"], parameters["messages"]
    spark = create_session(
        "shuffle",
        {
            "spark.master": f"local[{parameters['threads']}]",
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.local.dir": str(Path(parameters["work"]) / "spark"),
        },
    )
    for _ in range(parameters["warm_up"]):
        _measure(spark, form, tasks, messages)
    started = time.time()
    seconds = [_measure(spark, form, tasks, messages) for _ in range(parameters["rounds"])]
    ended = time.time()
    empty = [_measure(spark, form, tasks, 0) for _ in range(parameters["rounds"])]
    spark.stop()
    return {"round_seconds": seconds, "empty_round_seconds": empty, "started": started, "ended": ended}


def _measure(spark: SparkSession, form: str, tasks: int, messages: int) -> float:
    own = messages // tasks
    start = time.monotonic()
    results = FORMS[form](spark, own, tasks)
    spent = time.monotonic() - start
    full, rest = divmod(own, FLUSH_MESSAGES)
    offsets = tasks * (full * _triangle(FLUSH_MESSAGES) + _triangle(rest))
    found = tuple(map(sum, zip(*results, strict=True)))
    if found != (own * tasks, offsets):
        raise RuntimeError(f"{found} came out of the {form} shuffle, {(own * tasks, offsets)} went in")
    return spent


def _triangle(count: int) -> int:
    return count * (count - 1) // 2
