"""Collects the output of an attempt and cuts it into packets for the tasks of later stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.serdes import ColumnSerde
from penstock.batch.batch import Batch
from penstock.graph.topology import Channel, Routing, Topology
from penstock.runtime.context import MessagePage, Position
from penstock.runtime.messages.incoming import Count, EndedAttempt, Place, trailers
from penstock.runtime.messages.outlet import (
    FLUSH_BYTES,
    FLUSH_MESSAGES,
    MAX_PACKET_BYTES,
    ColumnOutlet,
    LimitedOutlet,
    Outlet,
)
from penstock.runtime.messages.packet import Packet, PacketKind, encode_messages, encode_rows, in_one
from penstock.runtime.messages.partial import PartialOutlet, is_partial
from penstock.runtime.operators.base import operator_of, place_of_channel
from penstock.system.contract.messages import RecordLimits
from penstock.system.partitioner import partition_of, partitions_of

_FEW = 32
"""Messages that are sent to their partitions one by one."""


class JointOutput:
    """The attempts of a stage whose output leaves in one stream, and counts as a whole or not at all. Each leaves its
    messages here for the last one, which sends them all. Trailers follow for all of them together.

    In a small batch, a task has one or two messages for each other task, and a packet costs as much as many messages.
    """

    def __init__(self, attempts: int) -> None:
        """`attempts`: how many end their output here, one after the other. If the last one fails, messages stay here:
        the trailers say that the batch has failed."""
        self._left = attempts
        self._ended: dict[int, EndedAttempt] = {}
        """By task."""
        self._router: Router | None = None
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        """By channel."""
        self._messages = self._bytes = 0

    def finish(self, router: Router, *, failed: bool) -> Iterator[Packet]:
        """The packets of an attempt that have not been sent yet. A failed attempt sends nothing more."""
        self._left -= 1
        before: dict[int, list[pa.RecordBatch]] = {}
        if not failed:
            has_room = self._messages < FLUSH_MESSAGES and self._bytes < FLUSH_BYTES
            if self._left > 0 and router.may_leave_messages and has_room:
                self._keep(router)
            else:
                before, self._batches = self._batches, before
                self._messages = self._bytes = 0
            yield from router.take_all(before)
        self._router = router
        ended = router.ended(failed=failed)
        self._ended[ended.task] = ended

    def end(self) -> Iterator[Packet]:
        """The trailers of all attempts that have ended here."""
        if self._batches and not any(each.failed for each in self._ended.values()):
            raise ValueError("messages were left for an attempt that did not end here: they would be lost")
        if self._router is not None:
            yield from self._router.trailers_of(self._ended.values())

    def _keep(self, router: Router) -> None:
        for number, batches in router.take_for_any_task():
            self._batches.setdefault(number, []).extend(batches)
            self._messages += sum(batch.num_rows for batch in batches)
            self._bytes += sum(batch.nbytes for batch in batches)


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
        limits: Mapping[str, RecordLimits] | None = None,
    ) -> None:
        """`limits`: by output, what its stream refuses of a message, where it has to be noticed here."""
        self._topology = topology
        self._stage = stage
        self._task = task
        self._tasks = tasks
        self._token = ""
        self._output_partitions = output_partitions
        self.outlets = {
            c.number: self._outlet(c, position, (limits or {}).get(str(c.output)))
            for c in topology.channels_from(stage)
        }
        self._sent: dict[Place, Count] = {}
        self._inputs = 0
        """The number of inputs that have ended."""
        self._oldest: dict[int, int] = {}
        """By channel that has messages of inputs that have ended, the number of the first such input. They are sent
        before those of later inputs: a task reads inputs by their priority."""

    def _outlet(self, channel: Channel, position: Position, limits: RecordLimits | None) -> Outlet:
        place, serde = place_of_channel(channel, self._topology.graph), channel.value_serde
        if channel.columns is not None and isinstance(serde, ColumnSerde):
            target = self._topology.graph.operator(channel.targets[0]) if channel.may_be_partial else None
            adder = None if target is None else operator_of(target).adder(channel.columns)
            if adder is not None:
                return PartialOutlet(channel, position, place, serde, channel.columns, adder)
            return ColumnOutlet(channel, position, place, serde, channel.columns)
        return Outlet(channel, position, place) if limits is None else LimitedOutlet(channel, position, place, limits)

    def begin(self, token: str, batch: Batch | None = None) -> None:
        """Begin an attempt. `batch`: messages of it may leave added up; None: they leave as they are."""
        self._token = token
        self._sent = {}
        self._inputs, self._oldest = 0, {}
        for outlet in self.outlets.values():
            outlet.begin(batch)

    def end_page(self, page: MessagePage) -> None:
        for outlet in self.outlets.values():
            outlet.end_page(page)

    def end_input(self) -> None:
        """All messages of an input have come; those of another one follow."""
        for number, outlet in self.outlets.items():
            if len(outlet):
                self._oldest.setdefault(number, self._inputs)
        self._inputs += 1

    def mark(self) -> dict[int, int]:
        return {number: len(outlet) for number, outlet in self.outlets.items()}

    def undo(self, mark: dict[int, int]) -> None:
        """Take back the messages collected after the mark, which must be of the current page."""
        for number, length in mark.items():
            self.outlets[number].truncate(length)

    def count_bytes(self) -> int:
        return sum(outlet.count_bytes() for outlet in self.outlets.values())

    def take_ready(self, page: MessagePage) -> Iterator[Packet]:
        """Packets of the channels that had collected enough at the last `count_bytes`; `page` is the current one."""
        ready = [number for number, outlet in self.outlets.items() if outlet.is_ready]
        if ready:
            self.end_page(page)  # of all channels, because a page is not kept
            ready += [number for number in self._oldest if number not in ready]
        for number in sorted(ready, key=self._place):
            yield from self._packets(number)

    @property
    def may_leave_messages(self) -> bool:
        """False if something was sent already, because packets are in order only if they are of one attempt; or if
        enough was collected for a packet."""
        self.count_bytes()
        return not self._sent and not any(outlet.is_ready for outlet in self.outlets.values())

    def take_for_any_task(self) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """Take the messages, by channel, that have the same targets whichever task sends them. All channels to an
        output leave theirs or none does, so that their order does not change."""
        by_output = [each for each in self.outlets.values() if each.channel.routing is Routing.OUTPUT]
        kept = {str(each.channel.output) for each in by_output if each.has_keyless}
        for number in sorted(self.outlets, key=self._place):
            outlet = self.outlets[number]
            if outlet.channel.routing is not Routing.TASK and str(outlet.channel.output) not in kept:
                self._oldest.pop(number, None)
                yield number, list(outlet.take())

    def take_all(self, before: Mapping[int, Sequence[pa.RecordBatch]]) -> Iterator[Packet]:
        """The packets that have not been sent yet. `before`: by channel, messages of others that are sent as well,
        before its own."""
        for number in sorted(self.outlets, key=self._place):
            yield from self._packets(number, before.get(number, ()))

    def _place(self, number: int) -> int:
        """The place of a channel among those that are sent together."""
        return self._oldest.get(number, self._inputs)

    def ended(self, *, failed: bool) -> EndedAttempt:
        return EndedAttempt(self._task, self._token, failed, self._sent)

    def trailers_of(self, ended: Iterable[EndedAttempt]) -> Iterator[Packet]:
        """The trailers of attempts of this stage."""
        return trailers(self._topology, self._stage, self._tasks, ended)

    def _packets(self, number: int, before: Sequence[pa.RecordBatch] = ()) -> Iterator[Packet]:
        self._oldest.pop(number, None)
        outlet = self.outlets[number]
        channel = outlet.channel
        for batch in _joined(chain(before, outlet.take())):
            is_state = channel.may_be_partial and is_partial(batch)
            is_bytes = channel.columns is None or is_state
            for dest, partition, messages in self._route(channel, batch):
                target = (channel.target_stage, dest)
                seq, sent = self._sent.get(target, (0, 0))
                payload, places = (encode_messages(messages), None) if is_bytes else encode_rows(messages)
                yield Packet(
                    dest,
                    channel.target_stage,
                    PacketKind.PARTIAL if is_state else PacketKind.DATA,
                    self._stage,
                    self._task,
                    self._token,
                    channel.number,
                    partition,
                    seq,
                    messages.num_rows,
                    payload,
                    places,
                )
                self._sent[target] = (seq + 1, sent + messages.num_rows)

    def _route(self, channel: Channel, batch: pa.RecordBatch) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """(task, partition, messages) for every task or output partition that gets some of the batch."""
        if channel.routing is Routing.TASK:
            yield self._task, self._task, batch
            return
        partitions = self._tasks
        keys = batch.column(0)
        by_output = channel.routing is Routing.OUTPUT
        if by_output:
            partitions = self._output_partitions[str(channel.output)]
        if batch.num_rows <= _FEW:
            default = self._task % partitions if by_output else 0
            for partition, messages in _group_few(batch, keys.to_pylist(), partitions, default):
                yield partition % self._tasks, partition, messages
            return
        targets = partitions_of(keys, partitions)
        if by_output and keys.null_count:
            targets = np.where(keys.is_null().to_numpy(zero_copy_only=False), self._task % partitions, targets)
        for partition, messages in _group(batch, targets, partitions):
            yield partition % self._tasks, partition, messages


def finish_output(router: Router, together: JointOutput | None, *, failed: bool) -> Iterator[Packet]:
    """End the output of an attempt: together with others, which ends later, or alone."""
    own = together or JointOutput(1)
    yield from own.finish(router, failed=failed)
    if together is None:
        yield from own.end()


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages of all batches, in fewer batches of bounded size."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        own = batch.nbytes
        other = bool(group) and batch.schema.types[1] != group[0].schema.types[1]  # states, and messages as they are
        if group and (other or rows + batch.num_rows > FLUSH_MESSAGES or size + own > MAX_PACKET_BYTES):
            yield in_one(group)
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += batch.num_rows
        size += own
    if group:
        yield group[0] if len(group) == 1 else in_one(group)


def _group_few(
    batch: pa.RecordBatch, keys: list[bytes | None], partitions: int, default: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """As `_group`, where columns cost more than they save. `default` is the partition of a message without a key."""
    rows: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(default if key is None else partition_of(key, partitions), []).append(row)
    for partition, own in sorted(rows.items()):
        is_run = own[-1] - own[0] == len(own) - 1
        yield partition, batch.slice(own[0], len(own)) if is_run else batch.take(pa.array(own))


def _group(batch: pa.RecordBatch, targets: Any, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    small = targets.astype(np.uint16) if partitions <= 1 << 16 else targets  # numpy sorts 16-bit numbers by radix
    order = np.argsort(small, kind="stable")
    sorted_batch = batch.take(pa.array(order))
    counts = np.bincount(targets, minlength=partitions)
    starts = np.concatenate(([0], np.cumsum(counts)))
    for partition, start, length in zip(count(), starts.tolist(), counts.tolist(), strict=False):
        if length:
            yield partition, sorted_batch.slice(start, length)
