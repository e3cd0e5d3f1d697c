"""What a checkpoint says of durable intermediate streams, as values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.api.time.watermarks import NO_WATERMARK
from penstock.checkpoint.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class IntermediatePartition:
    """One partition. `position` is the offset behind what was read last; None if nothing is known of it. `ranges` are
    the offsets, from the first one to the one behind the last, that are still to be read."""

    partition: int
    position: int | None
    unread: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class IntermediateFacts:
    """A durable intermediate stream at a checkpoint. `writer` is the operator that writes it. `unread` counts the
    messages that ended batches wrote and that are still to be read. `watermark_ms` is the watermark of the operator
    that reads, in epoch milliseconds: None if it has none yet, 2^63 - 1 once all inputs have ended."""

    stream: str
    writer: str
    key_serde: str
    value_serde: str
    generation: int
    unread: int
    watermark_ms: int | None
    partitions: tuple[IntermediatePartition, ...]


def intermediate_facts(record: CheckpointRecord) -> tuple[IntermediateFacts, ...]:
    """The facts of every such stream of a checkpoint."""
    found = []
    for stream, own in sorted(record.intermediate.items()):
        writer, key, value = (*record.intermediate_layout[stream].split(" "), "", "")[:3]
        partitions = tuple(
            IntermediatePartition(
                partition,
                own.positions.get(partition),
                own.left_of(partition),
                tuple(offsets for written in own.unread for offsets in written.ranges.get(partition, ())),
            )
            for partition in sorted(own.ends())
        )
        watermark = None if own.watermark == NO_WATERMARK else own.watermark
        found.append(
            IntermediateFacts(str(stream), writer, key, value, own.generation, own.left(), watermark, partitions)
        )
    return tuple(found)
