"""The last stage: writes the outputs, once everything of the batch for them has come.

The first and the last stage of a job are its outer ones: they run outside its containers, and keep readers and
writers open.
"""

from __future__ import annotations

import time
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, listed
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.checkpoint.streams import Ranges
from penstock.errors import PenstockError, RetryableError, SystemAwayError
from penstock.graph.topology import Topology
from penstock.runtime.messages.incoming import Sources, Spool, SpooledPayload
from penstock.runtime.messages.packet import Packet, decode_messages, records_of
from penstock.runtime.messages.stored import control_messages, first_offsets
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings, StepLimit
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.failures import failure_report
from penstock.runtime.stage.instance import StageInstance
from penstock.runtime.stage.source import InputReaders, ReadProgress, run_sources
from penstock.system.base import Appended, RawRecord, System, SystemWriter, WriterIdentity, without_headers

OutputRecords: TypeAlias = Mapping[SystemStreamPartition, Iterable[RawRecord]]
_NOWHERE: Appended = {}
_RECORDS_AT_ONCE = 10_000
"""Tasks with fewer records than this are written together."""


class OutputWriters:
    """The writers of one process to the outputs of a job, one for each system, kept from batch to batch: opening a
    partition costs as much as an append to it. Used by one thread."""

    def __init__(self, systems: Mapping[str, System], identity: WriterIdentity) -> None:
        self._systems = systems
        self._identity = identity
        self._writers: dict[str, SystemWriter] = {}
        self.began: float | None = None
        """When the current append began, on the machine's monotonic clock. May be read by any thread."""

    def append(self, records: OutputRecords) -> Appended:
        """Append to every partition; partitions of one system in one transaction. Returns the ranges of offsets that
        the records got, if the system reports them."""
        appended: dict[SystemStreamPartition, Ranges] = {}
        by_system: dict[str, dict[SystemStreamPartition, Iterable[RawRecord]]] = {}
        for ssp, own in records.items():
            by_system.setdefault(ssp.system, {})[ssp] = own
        self.began = time.monotonic()
        try:
            for system, part in sorted(by_system.items()):
                if system not in self._writers:
                    self._writers[system] = self._systems[system].writer(self._identity)
                with self._writers[system].begin() as transaction:
                    carries = self._systems[system].carries_headers
                    for ssp, own in part.items():
                        transaction.append(ssp, own if carries else without_headers(own))
                if self._systems[system].reports_appended:
                    appended |= transaction.appended()
        finally:
            self.began = None
        return appended

    def close(self) -> None:
        """Close the writers. The next append opens new ones."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class WaitingRecords:
    """The messages for one partition, in packets that wait in a spool. They are decoded packet by packet while they are
    written."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._payloads: list[SpooledPayload] = []
        self.behind: tuple[RawRecord, ...] = ()
        """The control messages of an intermediate stream, which follow the messages."""
        self.messages = 0
        self.read = 0
        """Packets decoded so far. May be read by any thread."""

    def add(self, packet: Packet, payload: SpooledPayload) -> None:
        self._payloads.append(payload)
        self.messages += packet.messages

    def __iter__(self) -> Iterator[RawRecord]:
        for payload in self._payloads:
            yield from records_of(decode_messages(self._spool.get(payload)))
            self.read += 1
        yield from self.behind


class SinkAttempt:
    """One execution of a sink task: its input and its report.

    Until everything has come, payloads wait in the spool: a discarded attempt writes nothing.
    """

    def __init__(self, topology: Topology, settings: RuntimeSettings, batch: Batch, task: int, spool: Spool) -> None:
        if topology.sink is None:
            raise ValueError("a topology without outputs has no sink")
        self.topology = topology
        self._run_id = settings.run_id
        self._batch = batch
        self._stage = topology.sink
        self._task = task
        self._sources = Sources(topology.expected_sources(self._stage, task, settings.tasks))
        self._spool = spool
        self._packets: list[tuple[Packet, SpooledPayload]] = []
        self._records: dict[SystemStreamPartition, WaitingRecords] = {}

    def accept(self, packet: Packet) -> None:
        """Keep a packet until everything has come. Raises DiscardedAttemptError."""
        for ready in self._sources.accept(packet):
            if ready.payload is None:
                raise ValueError(f"a data packet of channel {ready.channel} has no messages")
            if self._batch.quiet and self.topology.channels[ready.channel].is_output:
                continue
            self._packets.append((ready._replace(payload=None), self._spool.put(ready.payload)))

    @property
    def packets_written(self) -> int:
        """Packets decoded so far to be written. May be read by any thread."""
        return sum(records.read for records in list(self._records.values()))

    def check_complete(self) -> None:
        self._sources.check_complete()

    def records(self) -> Mapping[SystemStreamPartition, WaitingRecords]:
        """The messages of each partition, ordered by their stage, task and sequence; empty if a source failed."""
        if self._sources.failed or self._records:
            return self._records
        for packet, payload in sorted(self._packets, key=lambda p: (p[0].source_stage, p[0].source_task, p[0].seq)):
            output = self.topology.channels[packet.channel].output
            if output is None:
                raise ValueError(f"packet of channel {packet.channel} is not for an output")
            ssp = SystemStreamPartition(output.system, output.stream, packet.partition)
            self._records.setdefault(ssp, WaitingRecords(self._spool)).add(packet, payload)
        for reader in self.topology.graph.intermediates:
            if control := control_messages(self._batch, reader.writer, self._run_id):
                ssp = SystemStreamPartition(reader.stream.system, reader.stream.stream, self._task)
                self._records.setdefault(ssp, WaitingRecords(self._spool)).behind = control
        return self._records

    def report(self, error: PenstockError | None, appended: Appended = _NOWHERE) -> Packet:
        token, read = new_token(), self._sources.marks()
        if self._sources.failed:
            return Report(self._stage, self._task, token, read, upstream_failed=True).packet()
        if error is not None:
            return failure_report(self._stage, self._task, token, read, error).packet()
        written: dict[str, int] = {}
        for ssp, own in self._records.items():
            name = str(ssp.system_stream)
            written[name] = written.get(name, 0) + own.messages
        through: dict[str, dict[int, Ranges]] = {}
        for reader in self.topology.graph.intermediates:
            ssp = SystemStreamPartition(reader.stream.system, reader.stream.stream, self._task)
            if ssp in self._records and (messages := self._records[ssp].messages):
                offsets = first_offsets(appended.get(ssp, ()), messages)
                if sum(end - start for start, end in offsets) < messages:
                    silent = _silent(ssp, messages, offsets)
                    return failure_report(self._stage, self._task, token, read, silent).packet()
                through[str(reader.stream)] = {self._task: offsets}
        messages = sum(written.values())
        return Report(
            self._stage, self._task, token, read, messages=messages, written=written, appended=through
        ).packet()


def _silent(ssp: SystemStreamPartition, messages: int, offsets: Ranges) -> PenstockError:
    """The error for messages without a known offset, which would never be read."""
    known = sum(end - start for start, end in offsets)
    return PenstockError(
        f"the system `{ssp.system}` reported the offsets of {known} of {counted(messages, 'message')} that were "
        f"appended to `{ssp}`: the others would be lost. Its writers do not do what `System.reports_appended` promises"
    )


def writing_text(topology: Topology) -> str:
    return f"{_outputs(topology)} to be written"


def _outputs(topology: Topology) -> str:
    names = [] if topology.sink is None else [f"`{stream}`" for stream in topology.streams_of(topology.sink)]
    return f"the output{'s' if len(names) > 1 else ''} {listed(names)}"


class SinkAttempts:
    """The sink attempts of several tasks in one process. Their payloads wait in one spool."""

    def __init__(
        self, topology: Topology, settings: RuntimeSettings, batch: Batch, tasks: Iterable[int], spool: Spool
    ) -> None:
        """The spool is closed with the attempts."""
        self._topology = topology
        self._limit = settings.step_limits.of_outputs(batch)
        self._spool = spool
        self._attempts = {task: SinkAttempt(topology, settings, batch, task, spool) for task in tasks}

    def accept(self, packet: Packet) -> None:
        """Keep a packet until everything has come. Raises DiscardedAttemptError."""
        self._attempts[packet.dest].accept(packet)

    def write(self, writers: OutputWriters) -> Iterator[Packet]:
        """Write the records, each partition with one atomic append, and report. An append that took longer than it may
        is reported as failed, although it was written.

        Output is at least once: a second execution writes again. Records of a fenced writer are refused.

        Raises:
            DiscardedAttemptError: something is missing; nothing was written.
            RetryableError: a system may take it the next time.
        """
        for attempt in self._attempts.values():
            attempt.check_complete()
        group: list[SinkAttempt] = []
        for number, attempt in enumerate(self._attempts.values(), 1):
            group.append(attempt)
            waiting = sum(records.messages for one in group for records in one.records().values())
            if waiting >= _RECORDS_AT_ONCE or number == len(self._attempts):
                yield from _write(group, writers, self._limit)
                group = []

    def progress(self, writers: OutputWriters) -> object:
        """A value that changes while they are written. May be called by any thread.

        Raises:
            PenstockTimeoutError: the current append has taken longer than it may.
        """
        began, now = writers.began, time.monotonic()
        if began is not None and self._limit.is_over(began, now):
            raise self._limit.error(f"the append to {_outputs(self._topology)}", now - began)
        return self.packets_written if self._limit.is_general else object()

    @property
    def packets_written(self) -> int:
        """Packets decoded so far to be written. May be read by any thread."""
        return sum(attempt.packets_written for attempt in self._attempts.values())

    def failed(self, error: PenstockError, besides: Container[int]) -> list[Packet]:
        """The reports of the tasks that have not reported, which fail with this error."""
        return [attempt.report(error) for task, attempt in self._attempts.items() if task not in besides]

    def close(self) -> None:
        self._spool.close()


def _write(group: Sequence[SinkAttempt], writers: OutputWriters, limit: StepLimit) -> Iterator[Packet]:
    failed: PenstockError | None = None
    appended = _NOWHERE
    began = time.monotonic()
    try:
        appended = writers.append({ssp: records for attempt in group for ssp, records in attempt.records().items()})
        if limit.is_over(began, now := time.monotonic()):
            failed = limit.error(f"the append to {_outputs(group[0].topology)}", now - began)
    except SystemAwayError as error:  # reported: Spark would try the task again at once, several times
        failed = error
    except RetryableError:
        raise
    except PenstockError as error:
        failed = error
    for attempt in group:
        yield attempt.report(failed, appended)


class OuterStages:
    """Both stages of one job in one process. It keeps readers, writers and instances from batch to batch, of one epoch
    at a time: those of another epoch are closed. Used by one thread."""

    def __init__(self, topology: Topology, settings: RuntimeSettings, systems: Mapping[str, System]) -> None:
        self._topology = topology
        self._settings = settings
        self._systems = systems
        self._readers: tuple[Hashable, InputReaders] | None = None
        """The epoch and its readers."""
        self._instances: dict[int, StageInstance] = {}
        """Task → its instance of stage 0."""
        self._writers: tuple[WriterIdentity, OutputWriters] | None = None

    def read(
        self,
        epoch: Hashable,
        batch: Batch,
        portions: Mapping[int, Sequence[tuple[int, Portion]]],
        progress: ReadProgress,
    ) -> Iterator[Packet]:
        """All output of stage 0 for the portions of each task; see `run_sources`."""
        if self._readers is None or self._readers[0] != epoch:
            self._close_readers()
            self._readers = epoch, InputReaders(self._systems)
        readers = self._readers[1]
        return run_sources(self._topology, self._settings, batch, portions, readers, progress, self._instances)

    def sinks(self, batch: Batch, tasks: Iterable[int]) -> SinkAttempts:
        """New attempts of the last stage."""
        return SinkAttempts(self._topology, self._settings, batch, tasks, Spool())

    def writers(self, identity: WriterIdentity) -> OutputWriters:
        if self._writers is None or self._writers[0] != identity:
            self._close_writers()
            self._writers = identity, OutputWriters(self._systems, identity)
        return self._writers[1]

    def leave_writers(self) -> None:
        """Forget the writers without closing them. The next ones are new."""
        self._writers = None

    def close(self) -> None:
        self._close_readers()
        self._close_writers()

    def _close_readers(self) -> None:
        """Close the readers, and the instances, which are of the same epoch."""
        readers, self._readers = self._readers, None
        instances, self._instances = self._instances, {}
        if readers is not None:
            readers[1].close()
        for instance in instances.values():
            instance.close()

    def _close_writers(self) -> None:
        writers, self._writers = self._writers, None
        if writers is not None:
            writers[1].close()
