"""Truncates durable intermediate streams to the messages that retained checkpoints still read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.intermediate import STREAMS
from penstock.checkpoint.record import CheckpointRecord
from penstock.start.streams.job_streams import JobStreams
from penstock.system.base import OffsetRange, WriterIdentity


def needed_offsets(stream: SystemStream, restorable: Iterable[CheckpointRecord]) -> dict[int, int]:
    """Partition → the oldest offset that a run from any of the checkpoints reads. Checkpoints from before the stream
    need nothing of it. Pure."""
    needed: dict[int, int] = {}
    for record in restorable:
        own = record.section(STREAMS).streams.get(stream)
        if own is None:
            continue
        for partition, end in own.ends().items():
            offset = own.needed(partition)
            needed[partition] = min(needed.get(partition, end), end if offset is None else offset)
    return needed


class Truncation:
    """Deletes messages that no checkpoint needs, in systems that delete records on request
    (`System.compacts_on_request`). Elsewhere the retention of the stream is its owner's business. Used by one
    thread."""

    def __init__(self, streams: JobStreams, writer: Callable[[int], WriterIdentity]) -> None:
        """`writer`: the identity of the streams' writer in an epoch. With it, a driver that lost the job deletes
        nothing."""
        self._admins = streams.admins
        self._streams = [each for each in streams.intermediates if streams.systems[each.system].compacts_on_request]
        self._writer = writer
        self._begins: dict[SystemStreamPartition, int] = {}

    def behind(self, epoch: int, restorable: Sequence[CheckpointRecord]) -> None:
        """Delete the messages that no run from any of these checkpoints reads.

        Raises:
            FencedError: a newer epoch writes the streams.
            RetryableError: a system may do it the next time.
        """
        for stream in self._streams:
            for partition, offset in needed_offsets(stream, restorable).items():
                ssp = SystemStreamPartition(stream.system, stream.stream, partition)
                if offset > self._begins.get(ssp, 0):
                    self._admins[stream.system].compact(OffsetRange(ssp, offset, offset), self._writer(epoch))
                    self._begins[ssp] = offset
