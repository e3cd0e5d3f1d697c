"""Steps of Spark's workers that send and receive packets: workers import them from here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from penstock.runtime.messages.packet import Packet, PacketKind, from_batch, to_batch

TASKS = 7


def _partition() -> int:
    running = TaskContext.get()
    assert running is not None
    return running.partitionId()


@dataclass(frozen=True)
class Send:
    """A packet from each partition to each task, of so many bytes."""

    size: int
    ballast: bytes = field(default=b"", repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert not list(batches)
        mine = _partition()
        for task in range(TASKS):
            payload = bytes([mine, task]) * (self.size // 2)
            yield to_batch([Packet(task, 1, PacketKind.DATA, 0, mine, "token", 0, 0, 0, 1, payload)])


@dataclass(frozen=True)
class Receive:
    """Each packet again, with the partition that it came to as its token."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            packets = [packet._replace(token=str(_partition())) for packet in from_batch(batch)]
            yield to_batch([packet._replace(payload=bytes(packet.payload or b"")) for packet in packets])


@dataclass(frozen=True)
class ImportShipped:
    """Fails unless the worker finds the module."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import shipped_with_add_py_file  # type: ignore[import-not-found]

        assert shipped_with_add_py_file.VALUE == 7
        yield from batches
