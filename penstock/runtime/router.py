"""Collects what an attempt sends and cuts it into packets for the tasks of later stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.runtime.context import Position
from penstock.runtime.packet import MESSAGE_SCHEMA, Kind, Packet, encode_messages
from penstock.runtime.topology import Channel, Routing, Topology
from penstock.system.partitioner import partitions_of

FLUSH_MESSAGES = 8192
"""Messages a channel collects before they are cut into packets."""

MAX_PACKET_BYTES = 16 << 20
"""A packet of more than one message stays below this many bytes of keys and values."""


class Outlet:
    """One channel's way out of a stage: serialised messages in columns, until they are cut into packets."""

    def __init__(self, channel: Channel, position: Position) -> None:
        self.channel = channel
        self._position = position
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._origins: list[int] = []
        self._offsets: list[int] = []
        self._encode_key = channel.key_serde.to_bytes
        self._encode_value = channel.value_serde.to_bytes

    def push(self, key: Any, value: Any) -> None:
        """Add a message, serialised now, with the origin of the message being processed."""
        key_bytes = None if key is None else self._encode_key(key)
        self.push_raw(key_bytes, None if value is None else self._encode_value(value))

    def push_raw(self, key: bytes | None, value: bytes | None) -> None:
        """Add a message that is serialised already."""
        position = self._position
        self.keys.append(key)
        self.values.append(value)
        self._timestamps.append(position.timestamp)
        self._origins.append(position.origin)
        self._offsets.append(position.offset)

    def __len__(self) -> int:
        return len(self.keys)

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` messages."""
        for column in (self.keys, self.values, self._timestamps, self._origins, self._offsets):
            del column[length:]

    def take(self) -> Iterator[pa.RecordBatch]:
        """The collected messages, in order, in batches of bounded size; the outlet is empty afterwards."""
        columns = (self.keys, self.values, self._timestamps, self._origins, self._offsets)
        for start, end in _cuts(self.keys, self.values):
            arrays = [pa.array(c[start:end], f.type) for c, f in zip(columns, MESSAGE_SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
        self.truncate(0)


def _cuts(keys: list[bytes | None], values: list[bytes | None]) -> Iterator[tuple[int, int]]:
    """Index ranges of at most MAX_PACKET_BYTES each, or of one message."""
    total = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    if total <= MAX_PACKET_BYTES:
        if keys:
            yield 0, len(keys)
        return
    start = size = 0
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        more = len(key or b"") + len(value or b"")
        if i > start and size + more > MAX_PACKET_BYTES:
            yield start, i
            start, size = i, 0
        size += more
    yield start, len(keys)


class Router:
    """All outlets of a (stage, task), for one attempt after the other."""

    def __init__(
        self,
        topology: Topology,
        stage: int,
        task: int,
        tasks: int,
        position: Position,
        output_partitions: Mapping[str, int],
    ) -> None:
        self._topology = topology
        self._stage = stage
        self._task = task
        self._tasks = tasks
        self._token = ""
        self._output_partitions = output_partitions
        self.outlets = {c.number: Outlet(c, position) for c in topology.channels_from(stage)}
        self._sent: dict[tuple[int, int], list[int]] = {}
        """(stage, task) -> [packets, messages] sent there."""

    def begin(self, token: str) -> None:
        """A new attempt: nothing collected, nothing sent, its own token."""
        self._token = token
        self._sent = {}
        for outlet in self.outlets.values():
            outlet.truncate(0)

    def mark(self) -> dict[int, int]:
        """How much is collected now, for `undo`."""
        return {number: len(outlet) for number, outlet in self.outlets.items()}

    def undo(self, mark: dict[int, int]) -> None:
        """Take back what was collected after the mark. Nothing may have been taken since."""
        for number, length in mark.items():
            self.outlets[number].truncate(length)

    def take_ready(self) -> Iterator[Packet]:
        """Packets of the channels that have collected enough."""
        for outlet in self.outlets.values():
            if len(outlet) >= FLUSH_MESSAGES:
                yield from self._packets(outlet)

    def finish(self, *, failed: bool) -> Iterator[Packet]:
        """What is left, then the trailers. A failed attempt sends nothing more but its trailers."""
        if not failed:
            for outlet in self.outlets.values():
                yield from self._packets(outlet)
        kind = Kind.FAILED_TRAILER if failed else Kind.TRAILER
        for stage in self._topology.targets_of(self._stage):
            tasks = range(self._tasks) if self._topology.is_shuffled(stage) else (self._task,)
            for dest in tasks:
                packets, messages = self._sent.get((stage, dest), (0, 0))
                yield Packet(
                    dest, stage, kind, self._stage, self._task, self._token, -1, -1, packets, messages, None
                )

    def _packets(self, outlet: Outlet) -> Iterator[Packet]:
        channel = outlet.channel
        for batch in outlet.take():
            for dest, partition, messages in self._route(channel, batch):
                sent = self._sent.setdefault((channel.target_stage, dest), [0, 0])
                yield Packet(
                    dest, channel.target_stage, Kind.DATA, self._stage, self._task, self._token, channel.number,
                    partition, sent[0], messages.num_rows, encode_messages(messages),
                )
                sent[0] += 1
                sent[1] += messages.num_rows

    def _route(self, channel: Channel, batch: pa.RecordBatch) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """(task, partition, messages) for every task or output partition that gets some of the batch."""
        if channel.routing is Routing.TASK:
            yield self._task, self._task, batch
            return
        partitions = self._tasks
        keys = batch.column(0)
        if channel.output is not None:
            partitions = self._output_partitions[str(channel.output)]
        targets = partitions_of(keys, partitions)
        if channel.output is not None and keys.null_count:
            targets = np.where(keys.is_null().to_numpy(zero_copy_only=False), self._task % partitions, targets)
        for partition, messages in _group(batch, targets, partitions):
            yield partition % self._tasks, partition, messages


def _group(batch: pa.RecordBatch, targets: Any, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each target, in order."""
    order = np.argsort(targets, kind="stable")
    sorted_batch = batch.take(pa.array(order))
    counts = np.bincount(targets, minlength=partitions)
    starts = np.concatenate(([0], np.cumsum(counts)))
    for partition, start, length in zip(count(), starts.tolist(), counts.tolist(), strict=False):
        if length:
            yield partition, sorted_batch.slice(start, length)
