"""The outbox of a task: messages for exactly-once outputs, from the End of their batch to the next commit.

Nobody decodes them on the way: an outbox holds packets as they came. What an attempt brings counts once End applies the
attempt; what a discarded one brought is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.errors import ContainerLostError
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.messages.sources import DiscardedAttemptError, Sources
from penstock.runtime.messages.spool import Spool, SpooledPayload
from penstock.runtime.reports import Report
from penstock.runtime.stage.kept_output import KeptAttempt, KeptOutput
from penstock.runtime.steps import Step

MEMORY_BYTES = 64 << 20
"""Limit of the memory of all outboxes of a container. Messages beyond it wait in files."""
_LEAST_MEMORY_BYTES = 1 << 20


class KeptPacket(NamedTuple):
    """One packet's messages."""

    messages: int
    size_bytes: int
    payload: SpooledPayload


@dataclass(frozen=True, slots=True)
class OutboxSnapshot:
    """The messages that a commit takes from an outbox. Its holder closes it."""

    task: int
    parts: Mapping[SystemStreamPartition, Sequence[KeptPacket]]
    """Output partition → its packets, in the order of their messages; no partition without packets."""
    spool: Spool
    """Holds the payloads. Used by one thread at a time."""

    def close(self) -> None:
        self.spool.close()


class Outbox(KeptOutput):
    """Exactly-once output of one task, between commits. Used by the threads of attempts, of End and of commits."""

    def __init__(self, task: int, memory_bytes: int = MEMORY_BYTES, folder: str | None = None) -> None:
        """`memory_bytes`: messages beyond it wait in a file without a name, in `folder`."""
        self._task = task
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._lock = threading.Lock()
        self._begin()

    @classmethod
    def of_container(cls, task: int, tasks: int, folder: str) -> Outbox:
        """An outbox with its share of the memory of a container that has `tasks` tasks."""
        return cls(task, max(_LEAST_MEMORY_BYTES, MEMORY_BYTES // tasks), folder)

    def _begin(self) -> None:
        self._spool = Spool(self._memory_bytes, self._folder)
        self._parts: dict[SystemStreamPartition, list[KeptPacket]] = {}
        self._kept = self._spool.level()
        """The level of the spool up to the last applied attempt."""
        self.size_bytes = 0
        """The size of the applied packets."""
        self._writing = 0
        """Attempts that may still put packets, or are neither applied nor dropped yet."""

    def begin_attempt(self, topology: Topology, tasks: int, token: str, batch: Batch) -> OutboxAttempt:
        return OutboxAttempt(topology, self._task, tasks, token, batch, self)

    def start(self) -> Spool:
        """Begin an attempt. Returns the spool for its packets, which it may use until it is applied or dropped."""
        with self._lock:
            self._writing += 1
            return self._spool

    def put(self, spool: Spool, payload: bytes | pa.Buffer) -> SpooledPayload:
        """Put the payload of an attempt into its spool.

        Raises:
            DiscardedAttemptError: a commit has begun since, so the attempt is of no batch that counts.
            RetryableError: the disk is full or failing.
        """
        with self._lock:
            if spool is not self._spool:
                raise DiscardedAttemptError(f"a commit of task {self._task} has begun since the attempt did")
            kept = spool.put(payload)
        return bytes(kept) if isinstance(kept, pa.Buffer) else kept  # a buffer is part of a larger one

    def apply(self, spool: Spool, parts: Mapping[SystemStreamPartition, Sequence[KeptPacket]]) -> int:
        """Append the packets of an attempt to the outbox, and forget those of the other attempts. Returns their
        size.

        Nothing is written here, so that nothing can fail half-way.
        """
        with self._lock:
            if spool is not self._spool:
                raise ContainerLostError(f"an attempt of the outbox of task {self._task} began before the last commit")
            size = 0
            for ssp, packets in parts.items():
                self._parts.setdefault(ssp, []).extend(packets)
                for packet in packets:
                    size += packet.size_bytes
                    self._kept = spool.level_with(self._kept, packet.payload)
            self._end_of_one(spool)
            self.size_bytes += size
            return size

    def drop(self, spool: Spool) -> None:
        with self._lock:
            self._end_of_one(spool)

    def _end_of_one(self, spool: Spool) -> None:
        if spool is self._spool:
            self._writing -= 1
            if not self._writing:
                spool.cut(self._kept)

    def take(self) -> OutboxSnapshot | None:
        """Take the packets applied since the last call; None if there are none. Called between two batches, as every
        commit begins."""
        with self._lock:
            if not self._parts:
                return None
            taken = OutboxSnapshot(self._task, self._parts, self._spool)
            self._begin()
            return taken

    def close(self) -> None:
        with self._lock:
            self._spool.close()
            self._parts.clear()


class OutboxAttempt(KeptAttempt):
    """One execution of the outbox stage. Keeps its packets in the order of their stage, task and sequence."""

    step: Step | None = None
    """None: nothing happens here without a message."""
    processed = process_ns = 0
    """Its messages were processed where they were made."""
    operator = ""

    def __init__(self, topology: Topology, task: int, tasks: int, token: str, batch: Batch, outbox: Outbox) -> None:
        if topology.outbox is None:
            raise ValueError("a topology without exactly-once outputs has no outbox")
        self.stage = topology.outbox
        self.task = task
        self.token = token
        self.batch = batch
        self._topology = topology
        self._sources = Sources(topology.expected_sources(self.stage, task, tasks))
        self._outbox = outbox
        self._spool: Spool | None = outbox.start()
        self._packets: list[tuple[Packet, KeptPacket]] = []
        """Packets without their payloads, and where each payload is."""
        self._messages = 0

    def progress(self) -> object:
        """A value that changes with every packet."""
        return len(self._packets)

    def describe(self) -> str:
        return "output that is kept for the next commit"

    def accept(self, packet: Packet) -> tuple[Packet, ...]:
        """Keep a packet. Raises DiscardedAttemptError; RetryableError if the disk is full or failing."""
        for ready in self._sources.accept(packet):
            if ready.payload is None or self._spool is None:
                raise ValueError(f"a data packet of channel {ready.channel} has no messages, or came too late")
            if self.batch.quiet and self._topology.channels[ready.channel].is_output:
                continue
            kept = KeptPacket(ready.messages, len(ready.payload), self._outbox.put(self._spool, ready.payload))
            self._packets.append((ready._replace(payload=None), kept))
            self._messages += ready.messages
        return ()

    def finish(self, together: JointOutput | None = None) -> tuple[Packet, ...]:
        """The attempt's report. Raises DiscardedAttemptError unless all packets have come."""
        self._sources.check_complete()
        written: dict[str, int] = {}
        if not self._sources.failed:
            for packet, _ in self._packets:
                name = str(self._topology.channels[packet.channel].output)
                written[name] = written.get(name, 0) + packet.messages
        report = Report(
            self.stage,
            self.task,
            self.token,
            self._sources.marks(),
            messages=sum(written.values()),
            written=written,
            upstream_failed=self._sources.failed,
        )
        return (report.packet(),)

    def apply(self) -> int:
        """Move the packets into the outbox: End names this attempt. Returns their size."""
        parts: dict[SystemStreamPartition, list[KeptPacket]] = {}
        for packet, kept in sorted(self._packets, key=lambda p: (p[0].source_stage, p[0].source_task, p[0].seq)):
            output = self._topology.channels[packet.channel].output
            if output is None:
                raise ValueError(f"packet of channel {packet.channel} is not for an output")
            ssp = SystemStreamPartition(output.system, output.stream, packet.partition)
            parts.setdefault(ssp, []).append(kept)
        spool, self._spool, self._packets = self._spool, None, []
        if spool is None:
            raise ValueError("an attempt of an outbox is applied once")
        return self._outbox.apply(spool, parts)

    def close(self) -> None:
        """Discard the packets, unless they were applied."""
        spool, self._spool, self._packets = self._spool, None, []
        if spool is not None:
            self._outbox.drop(spool)
