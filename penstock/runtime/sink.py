"""The last stage: writes the outputs, once everything of the batch for them has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import PenstockError, RetryableError
from penstock.runtime.attempt import Report, Sources, new_token
from penstock.runtime.failure import failure_report
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.packet import Packet, decode_messages
from penstock.runtime.topology import Topology
from penstock.system.base import RawRecord, System, SystemWriter, WriterIdentity

OutputRecords: TypeAlias = dict[SystemStreamPartition, list[RawRecord]]
_RECORDS_AT_ONCE = 10_000
"""Tasks of fewer records together are written together."""


class OutputWriters:
    """The writers of one process to the outputs of a job, one for each system, kept from batch to batch: opening a
    partition costs as much as an append to it. Used by one thread."""

    def __init__(self, systems: Mapping[str, System], identity: WriterIdentity) -> None:
        self._systems = systems
        self._identity = identity
        self._writers: dict[str, SystemWriter] = {}

    def append(self, records: OutputRecords) -> None:
        """Append to every partition; see `SystemWriter.append_all`."""
        by_system: dict[str, OutputRecords] = {}
        for ssp, own in records.items():
            by_system.setdefault(ssp.system, {})[ssp] = own
        for system, part in sorted(by_system.items()):
            if system not in self._writers:
                self._writers[system] = self._systems[system].writer(self._identity)
            self._writers[system].append_all(part)

    def close(self) -> None:
        """Close the writers. The next append opens new ones."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class SinkAttempt:
    """One execution of a sink task: what came for it, and what it reports."""

    def __init__(self, topology: Topology, settings: RuntimeSettings, task: int) -> None:
        if topology.sink is None:
            raise ValueError("a topology without outputs has no sink")
        self._topology = topology
        self._stage = topology.sink
        self._task = task
        self._sources = Sources(topology.expected_sources(self._stage, task, settings.tasks))
        self._packets: list[Packet] = []

    def accept(self, packet: Packet) -> None:
        """Keep a packet until everything has come. Raises DiscardedAttemptError."""
        self._packets.extend(self._sources.accept(packet))

    def check_complete(self) -> None:
        """Raise DiscardedAttemptError unless everything has come."""
        self._sources.check_complete()

    def records(self) -> OutputRecords:
        """The messages of each partition, in the order of stage, task and sequence they came from; none if a source
        failed."""
        records: OutputRecords = {}
        if self._sources.failed:
            return records
        for packet in sorted(self._packets, key=lambda p: (p.source_stage, p.source_task, p.seq)):
            output = self._topology.channels[packet.channel].output
            if output is None or packet.payload is None:
                raise ValueError(f"packet of channel {packet.channel} is not for an output")
            messages = decode_messages(packet.payload)
            keys, values, timestamps = (messages.column(i).to_pylist() for i in range(3))
            ssp = SystemStreamPartition(output.system, output.stream, packet.partition)
            records.setdefault(ssp, []).extend(zip(timestamps, keys, values, strict=True))
        return records

    def report(self, records: OutputRecords, error: PenstockError | None) -> Packet:
        """What the driver gets, once the records are written or have failed to be."""
        token, read = new_token(), self._sources.tokens()
        if self._sources.failed:
            return Report(self._stage, self._task, token, read, upstream_failed=True).packet()
        if error is not None:
            return failure_report(self._stage, self._task, token, read, error).packet()
        written: dict[str, int] = {}
        for ssp, own in records.items():
            name = str(ssp.system_stream)
            written[name] = written.get(name, 0) + len(own)
        return Report(self._stage, self._task, token, read, messages=sum(written.values()), written=written).packet()


def write_outputs(attempts: Sequence[SinkAttempt], writers: OutputWriters) -> Iterator[Packet]:
    """Write what came for these tasks, each partition with one atomic append, and report.

    Output is at least once: a second execution writes again. What a fenced writer sends is refused.

    Raises:
        DiscardedAttemptError: something is missing; nothing was written.
        RetryableError: a system may take it the next time.
    """
    for attempt in attempts:
        attempt.check_complete()
    group: list[tuple[SinkAttempt, OutputRecords]] = []
    for number, attempt in enumerate(attempts, 1):
        group.append((attempt, attempt.records()))
        waiting = sum(len(records) for _, part in group for records in part.values())
        if waiting >= _RECORDS_AT_ONCE or number == len(attempts):
            yield from _write(group, writers)
            group = []


def _write(group: Sequence[tuple[SinkAttempt, OutputRecords]], writers: OutputWriters) -> Iterator[Packet]:
    failed: PenstockError | None = None
    try:
        writers.append({ssp: records for _, part in group for ssp, records in part.items()})
    except RetryableError:
        raise
    except PenstockError as error:
        failed = error
    for attempt, part in group:
        yield attempt.report(part, failed)
