"""The last stage: writes the outputs, once everything of the batch for them has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import PenstockError, RetryableError
from penstock.runtime.attempt import Report, Sources, new_token
from penstock.runtime.failure import failure_report
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.packet import Packet, decode_messages
from penstock.runtime.topology import Topology
from penstock.system.base import RawRecord, System, SystemWriter, WriterIdentity


class SinkAttempt:
    """One execution of a sink task. It writes each partition it owns with one atomic append.

    Output is at least once: a second execution writes again. What a fenced writer sends is refused.
    """

    def __init__(
        self,
        topology: Topology,
        settings: RuntimeSettings,
        task: int,
        systems: Mapping[str, System],
        identity: WriterIdentity,
    ) -> None:
        if topology.sink is None:
            raise ValueError("a topology without outputs has no sink")
        self._topology = topology
        self._stage = topology.sink
        self._task = task
        self._systems = systems
        self._identity = identity
        self._sources = Sources(topology.expected_sources(self._stage, task, settings.tasks))
        self._packets: list[Packet] = []

    def accept(self, packet: Packet) -> None:
        """Keep a packet until everything has come. Raises DiscardedAttemptError."""
        self._packets.extend(self._sources.accept(packet))

    def finish(self) -> Iterator[Packet]:
        """Write, and report. Raises DiscardedAttemptError before anything is written."""
        self._sources.check_complete()
        token = new_token()
        read = self._sources.tokens()
        if self._sources.failed:
            yield Report(self._stage, self._task, token, read, upstream_failed=True).packet()
            return
        try:
            written = self._write()
        except RetryableError:
            raise
        except PenstockError as error:
            yield failure_report(self._stage, self._task, token, read, error).packet()
            return
        messages = sum(written.values())
        yield Report(self._stage, self._task, token, read, messages=messages, written=written).packet()

    def _write(self) -> dict[str, int]:
        written: dict[str, int] = {}
        writers: dict[str, SystemWriter] = {}
        try:
            for ssp, records in sorted(self._records().items()):
                if ssp.system not in writers:
                    writers[ssp.system] = self._systems[ssp.system].writer(self._identity)
                writers[ssp.system].append(ssp, records)
                name = str(ssp.system_stream)
                written[name] = written.get(name, 0) + len(records)
        finally:
            for writer in writers.values():
                writer.close()
        return written

    def _records(self) -> dict[SystemStreamPartition, list[RawRecord]]:
        """The messages of each partition, in the order of stage, task and sequence they came from."""
        records: dict[SystemStreamPartition, list[RawRecord]] = {}
        for packet in sorted(self._packets, key=lambda p: (p.source_stage, p.source_task, p.seq)):
            output = self._topology.channels[packet.channel].output
            if output is None or packet.payload is None:
                raise ValueError(f"packet of channel {packet.channel} is not for an output")
            messages = decode_messages(packet.payload)
            keys, values, timestamps = (messages.column(i).to_pylist() for i in range(3))
            ssp = SystemStreamPartition(output.system, output.stream, packet.partition)
            records.setdefault(ssp, []).extend(zip(timestamps, keys, values, strict=True))
        return records
