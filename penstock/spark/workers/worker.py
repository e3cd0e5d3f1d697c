"""The code of Spark's Python workers: one callable for each kind of stage, pickled into each batch's job.

In PySpark's RDDs, packets are Arrow batches as frames of bytes, into which neither Spark nor pickle looks.
"""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.serializers import Serializer, SpecialLengths

from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.errors import CorruptError, PenstockTimeoutError
from penstock.host.position_page import present_page, use_page, worker_page
from penstock.host.process import keep_pandas_out, mark_interrupts
from penstock.runtime.messages.incoming import run_together
from penstock.runtime.messages.packet import (
    NO_PACKETS,
    PACKET_SCHEMA,
    Packet,
    from_batch,
    read_batch,
    split_by_size,
    to_batch,
)
from penstock.runtime.stage.sink import OuterStages, SinkAttempts
from penstock.runtime.stage.source import ReadProgress
from penstock.system.base import WriterIdentity
from penstock.wire.client import exchange
from penstock.wire.containers import Lane
from penstock.wire.ports import PackedPackage
from penstock.wire.protocol import AttemptCall, Identity
from penstock.wire.security import TlsIdentity

_outer: dict[str, OuterStages] = {}
"""By its digest, the last package that this process had."""
_settled = False
_modules = 0
"""Number of loaded modules when the garbage collector last froze them."""


def settle_worker(pages: str = "", epoch: int = -1) -> None:
    """Prepare the process for many tasks, and make it tell Ctrl-C from failures of the application. Called in each
    task, when its modules are loaded.

    Args:
        pages: the folder for a page of this process, if it processes messages.
        epoch: of these messages.
    """
    if pages and present_page() is None:
        use_page(worker_page(Path(pages)))
    if (page := present_page()) is not None:
        page.epoch = epoch
    global _settled
    if not _settled:
        mark_interrupts()
        keep_pandas_out()
        gc.set_threshold(100_000, 20, 50)  # pages of decoded messages are many objects, and no garbage yet
        pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives memory back and takes it again for each packet
        _settled = True
    hide_loaded()


def hide_loaded() -> None:
    """Hide loaded objects from the garbage collector, whenever more is loaded than before.

    PySpark's worker collects garbage after every task, before it takes the next one. With Arrow and Spark's SQL loaded
    that takes 40 ms, longer than all the rest of a small task.
    """
    global _modules
    if len(sys.modules) != _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


@dataclass(frozen=True, slots=True)
class SourceStage:
    """Stage 0: reads the portions of its lane's tasks. Nothing comes in."""

    package: PackedPackage
    lanes: tuple[Lane, ...]
    batch: Batch
    portions: Mapping[int, Sequence[tuple[int, Portion]]]
    epoch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        package = self.package.load()
        settle_worker(package.pages, self.epoch)
        for _ in batches:
            pass  # a worker whose input was not read to its end is not used again
        progress = ReadProgress()
        portions = {task: self.portions.get(task, ()) for task in self.lanes[spark_partition()].tasks}
        packets = outer_stages(self.package).read(self.epoch, self.batch, portions, progress)
        yield from alive_packets(packets, progress)


@dataclass(frozen=True, slots=True)
class ContainerStage:
    """A stage with state: streams its packets through the lane's container, passes all others on."""

    stage: int
    lanes: tuple[Lane, ...]
    secret: str = field(repr=False)
    epoch: int
    batch: Batch
    tls: TlsIdentity | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        lane = self.lanes[spark_partition()]
        identity = Identity(lane.address.incarnation, self.epoch)
        call = AttemptCall(identity, self.batch, self.stage, list(lane.tasks))
        return exchange(
            lane.address, self.secret, call, iter(batches), lambda batch: _split(batch, self.stage), self.tls
        )


@dataclass(frozen=True, slots=True)
class SinkStage:
    """The last stage: writes the outputs, passes reports on."""

    package: PackedPackage
    lanes: tuple[Lane, ...]
    batch: Batch
    identity: WriterIdentity

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        package = self.package.load()
        settle_worker()
        stages = outer_stages(self.package)
        with closing(stages.sinks(self.batch, self.lanes[spark_partition()].tasks)) as attempts:
            for batch in batches:
                mine, others = _split(batch, package.topology.sink)
                for packet in from_batch(mine):
                    attempts.accept(packet)
                if others.num_rows:
                    yield others
            yield from alive_writes(stages, attempts, self.identity)


@dataclass(frozen=True, slots=True)
class ByLane:
    """The end of a stage before an exchange: each batch is cut by the lanes of its packets."""

    lane_of: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        settle_worker()
        lane_of = pa.array(self.lane_of, pa.int32())
        for batch in batches:
            lanes = lane_of.take(batch.column("dest"))
            found = lanes.unique().to_pylist()
            if len(found) > 1:
                for lane in found:
                    yield lane, batch.filter(pc.equal(lanes, lane))
            else:
                yield (found or [0])[0], batch


def outer_stages(package: PackedPackage) -> OuterStages:
    """The stages of the package in this process; those of another package are closed."""
    if package.digest not in _outer:
        while _outer:
            _outer.popitem()[1].close()
        job = package.load()
        _outer[package.digest] = OuterStages(job.topology, job.settings, job.systems)
    return _outer[package.digest]


def alive_writes(stages: OuterStages, attempts: SinkAttempts, identity: WriterIdentity) -> Iterator[pa.RecordBatch]:
    """Write a batch's outputs, and report. A writer that exceeds its time limit is left alone, and reported as
    failed."""
    writers = stages.writers(identity)
    reported: set[int] = set()
    try:
        for batch in _alive(_batches(attempts.write(writers)), lambda: attempts.progress(writers)):
            reported.update(batch.column("source_task").to_pylist())
            yield batch
    except PenstockTimeoutError as error:
        stages.leave_writers()  # one that is stuck cannot be closed
        yield to_batch(attempts.failed(error, besides=reported))


def spark_partition() -> int:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs inside a Spark task only")
    return context.partitionId()


def _split(batch: pa.RecordBatch, stage: int | None) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(for this stage, for others). The exchange before has sorted them by task."""
    mine = pc.equal(batch.column("stage"), stage)
    return batch.filter(mine), batch.filter(pc.invert(mine))


def _batches(packets: Iterator[Packet]) -> Iterator[pa.RecordBatch]:
    for group in split_by_size(packets):
        yield to_batch(group)


def alive_packets(packets: Iterator[Packet], progress: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """The packets in batches, with empty batches as signs of life until the first comes."""
    return _alive(_batches(packets), progress)


def _alive(batches: Iterator[pa.RecordBatch], progress: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """The batches, and an empty one from time to time while there are none yet but `progress` changes.

    Spark kills a worker that sends nothing for long (`idle_limit`). User code may take as long for all messages of a
    batch together, but not for one.
    """
    seen: object = None

    def sign() -> pa.RecordBatch | None:
        nonlocal seen
        before, seen = seen, progress()
        return NO_PACKETS if seen != before else None

    return run_together(batches, when_idle=sign)


_LENGTH = struct.Struct("!i")
_LANE = struct.Struct("!iq")
"""The number of a partition, with its length before it, as PySpark's PairwiseRDD reads it."""


class PacketSerializer(Serializer):
    """Serializes batches of packets. An empty batch is sent at once, with everything written before it: it shows that
    the worker is alive."""

    def dump_stream(self, iterator: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
        for batch in iterator:
            _write(batch, stream)

    def load_stream(self, stream: BinaryIO) -> Iterator[pa.RecordBatch]:
        return (read_batch(frame, PACKET_SCHEMA) for frame in _read_frames(stream))


class RawFrames(Serializer):
    """Elements that are bytes. Read-only."""

    def load_stream(self, stream: BinaryIO) -> Iterator[pa.Buffer]:
        return _read_frames(stream)


class FramesByLane(Serializer):
    """Serializes (lane, batch) for the JVM's exchange: the lane is the partition that the batch goes to."""

    def dump_stream(self, iterator: Iterable[tuple[int, pa.RecordBatch]], stream: BinaryIO) -> None:
        for lane, batch in iterator:
            stream.write(_LANE.pack(_LANE.size - _LENGTH.size, lane))
            _write(batch, stream)


def _read_frames(stream: BinaryIO) -> Iterator[pa.Buffer]:
    while (length := _read_length(stream)) is not None:
        frame = stream.read(length)
        if len(frame) < length:
            raise EOFError(f"a frame of {length} bytes ends after {len(frame)}")
        yield pa.py_buffer(frame)


def _write(batch: pa.RecordBatch, stream: BinaryIO) -> None:
    frame = batch.serialize()
    stream.write(_LENGTH.pack(frame.size))
    stream.write(frame)
    if not batch.num_rows:
        stream.flush()


def _read_length(stream: BinaryIO) -> int | None:
    """The length of the next frame. None at the end, which the stream tells a worker and the driver sees."""
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise EOFError("the length of a frame breaks off")
    length = int(_LENGTH.unpack(head)[0])
    if length == SpecialLengths.END_OF_DATA_SECTION:
        return None
    if length < 0:
        raise CorruptError(f"a stream of packets is damaged: it has a frame of {length} bytes")
    return length
