"""The record of a commit, made from its boundary and the markers of all tasks; and the work that follows the commit.

The work behind a commit may take long, so separate threads do it, and no commit waits for it. It deletes what no
retained checkpoint needs, from the backends and from the log. It truncates durable intermediate streams to the messages
that retained checkpoints still read. It shows the positions in the systems of the inputs: as a consumer group of Kafka
(`task.commit.group`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import QUERY, QuerySection, by_task, to_next_offsets
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, Detail, Ended
from penstock.checkpoint.sections import Sections, SectionValues
from penstock.checkpoint.streams import STREAMS, StreamsSection
from penstock.checkpoint.task_versions import build_versions, changelog_identities, last_processed
from penstock.config.settings import TaskSettings
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.errors import CorruptError, FencedError, NotFoundError, PenstockError
from penstock.graph.stores import WAITING_STORES, waiting_stores
from penstock.start.job_streams import JobStreams
from penstock.state.backends.registry import BackendAdmins
from penstock.system.base import OffsetRange, System, SystemAdmin, WriterIdentity
from penstock.wire.protocol import Markers


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit to make, of everything up to a boundary."""

    boundary: Boundary
    detail: Detail = "commit"
    ended: Ended | None = None
    consumed_startpoints: tuple[str, ...] = ()
    """The uuids of the requests that a start takes."""
    reset_operators: tuple[str, ...] = ()
    sections: SectionValues = field(default_factory=dict)
    """The sections of wings that have a part in this commit alone."""
    idle: bool = False
    """True if nothing has happened since the last commit: this one is for backends that have to act by time."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the records of one run."""

    log: CheckpointLog
    layout: Mapping[str, str]
    """Store → its recorded layout."""
    tasks: int
    settings: TaskSettings
    intermediate_layout: Mapping[SystemStream, str] = field(default_factory=dict)
    """The recorded layout of each durable intermediate stream. Its offsets are elsewhere in the record."""
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    """Distinguishes each input from earlier and later streams of its name."""
    state_ids: Mapping[str, str] = field(default_factory=dict)
    """Operator → the id that its stores are named after, where that is another one."""
    inputs: Mapping[str, SystemStream] = field(default_factory=dict)
    """Operator → the stream that it reads."""

    def record(
        self,
        checkpoint_id: CheckpointId,
        parent: CheckpointId | None,
        claim: Claim,
        request: CommitRequest,
        found: Markers,
        sections: SectionValues | None = None,
    ) -> CheckpointRecord:
        """Make the record of a commit. `found`: the markers of its backends. `sections`: those of the wings that took
        part in it."""
        boundary = request.boundary
        stores, found = self._remembered(boundary, found)
        next_offsets = to_next_offsets(boundary.positions, self.tasks)
        record = CheckpointRecord(
            id=checkpoint_id,
            parent=parent,
            epoch=claim.epoch,
            run_id=claim.run_id,
            writer=claim.writer,
            task_count=self.tasks,
            batch=boundary.batch,
            batch_time_ms=boundary.batch_time_ms,
            stores=stores,
            next_offsets=next_offsets,
            tasks={
                task: build_versions(
                    checkpoint_id,
                    last_processed(offsets),
                    found.get(str(task), {}),
                    self.settings.checkpoint_write_versions,
                )
                for task, offsets in next_offsets.items()
            },
            kind_detail=request.detail,
            ended=boundary.closing or request.ended,
            consumed_startpoints=request.consumed_startpoints,
            ended_inputs=tuple(sorted(boundary.ended_inputs)),
            reset_operators=request.reset_operators or tuple(sorted(boundary.drained_operators)),
            lost=boundary.lost,
            identities={**self.identities, **changelog_identities(found)},
            moved=tuple(sorted(boundary.moved)),
            quiet_until=by_task(boundary.quiet_until),
            sections=Sections.of({**self._sections(boundary), **(sections or {}), **request.sections}),
        )
        return replace(record, retained=self.log.known().retained_beside(record, self.settings.checkpoint_retained))

    def _sections(self, boundary: Boundary) -> SectionValues:
        """The sections of what every run reads."""
        streams = {
            # The next run reads nothing of what a run that has ended was to read.
            stream: own.next_generation() if boundary.closed else own
            for stream, own in boundary.intermediate.items()
        }
        marks = boundary.watermarks
        inputs = {op: stream for op, stream in self.inputs.items() if op in marks}
        return {
            TIME: TimeSection() if boundary.closed else TimeSection(by_task(boundary.event_times), marks, inputs),
            STREAMS: StreamsSection(streams, {stream: self.intermediate_layout[stream] for stream in streams}),
            QUERY: QuerySection(boundary.offered),
        }

    def _remembered(self, boundary: Boundary, found: Markers) -> tuple[Mapping[str, str], Markers]:
        """The stores that the record covers, with their markers. Once everything that waits for time has fired, the
        record leaves out the stores in which it waited: the next run begins without them, however their operators are
        defined. Those of an operator that was drained alone are left out alone."""
        if boundary.closed:
            stores = {name: layout for name, layout in self.layout.items() if not name.endswith(WAITING_STORES)}
        elif boundary.drained_operators:
            empty = waiting_stores(self.state_ids.get(op, op) for op in boundary.drained_operators)
            stores = {name: layout for name, layout in self.layout.items() if name not in empty}
        else:
            return self.layout, found
        return stores, {
            task: {
                backend: {store: marker for store, marker in markers.items() if store in stores}
                for backend, markers in own.items()
            }
            for task, own in found.items()
        }


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


logger = logging.getLogger(__name__)


class Collection:
    """Deletes everything that no checkpoint needs any more, one collection at a time."""

    def __init__(
        self,
        log: CheckpointLog,
        admins: BackendAdmins,
        wings: Sequence[DriverPart] = (),
        truncation: Truncation | None = None,
    ) -> None:
        """`wings`: the parts of wings in the run. Without `truncation`, it has no durable intermediate streams."""
        self._log = log
        self._admins = admins
        self._wings = wings
        self._truncation = truncation
        self._swept_epoch: int | None = None
        self._incomplete = ""
        """The problem for which the last collection deleted nothing of a backend."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collect")
        self._running: Future[None] | None = None

    def behind(self, record: CheckpointRecord) -> None:
        """Collect after this checkpoint, unless a collection runs: the next one finds its garbage."""
        if self._running is None or self._running.done():
            self._running = self._thread.submit(self._collect, record)

    def close(self, *, wait: bool) -> None:
        """End the thread. No call follows."""
        self._thread.shutdown(wait=wait, cancel_futures=not wait)

    def _collect(self, record: CheckpointRecord) -> None:
        """Delete the garbage of checkpoints that this one does not retain any more. Once an epoch, delete the garbage
        of earlier epochs as well. Records go last: until then they say which objects they needed.

        Commits go on meanwhile. Everything is decided by one view of the log: a checkpoint that left it later may share
        its objects with a newer one, which this view does not have.
        """
        view = self._log.known()
        for part in self._wings:
            self._let_collect(part, record)
        if self._truncation is not None:
            self._truncate(self._truncation, record, view.restorable)
        left, sweep = self._log.uncollected(view), self._swept_epoch != record.epoch
        if not left and not sweep:
            return
        try:
            try:
                self._admins.collect(record.epoch, view.restorable, list(left.values()), sweep=sweep)
            except (NotFoundError, CorruptError) as error:
                self._log.check_owner()  # a newer owner may have deleted what the marker names
                self._warn_incomplete(record, error)
                return
            self._log.prune(left)
        except FencedError as error:
            logger.info("the collection after checkpoint %s has ended: %s", record.id, error)
        except Exception as error:
            logger.warning("collecting after checkpoint %s failed; the next commit tries again: %s", record.id, error)
        else:
            self._swept_epoch, self._incomplete = record.epoch, ""

    def _let_collect(self, part: DriverPart, record: CheckpointRecord) -> None:
        try:
            part.collect(record)
        except Exception as error:
            logger.warning("the wing `%s` failed to collect after checkpoint %s: %s", part.wing, record.id, error)

    def _warn_incomplete(self, record: CheckpointRecord, error: PenstockError) -> None:
        """Warn once of each problem, because the next collections find the same one."""
        if str(error) != self._incomplete:
            self._incomplete = str(error)
            logger.warning("the collection after checkpoint %s is incomplete: %s", record.id, error)

    def _truncate(
        self, truncation: Truncation, record: CheckpointRecord, restorable: Sequence[CheckpointRecord]
    ) -> None:
        try:
            truncation.behind(record.epoch, restorable)
        except Exception as error:
            logger.warning(
                "truncating the intermediate streams after checkpoint %s failed; the next commit tries again: %s",
                record.id,
                error,
            )


Shown = dict[SystemStreamPartition, int]


class _Streams(Protocol):
    @property
    def inputs(self) -> tuple[SystemStream, ...]: ...

    @property
    def systems(self) -> Mapping[str, System]: ...

    @property
    def admins(self) -> Mapping[str, SystemAdmin]: ...


def shown_positions(group: str | None, streams: _Streams) -> list[ShownPositions]:
    """For a commit coordinator: empty if no group is configured."""
    if group is None:
        return []
    inputs = [stream for stream in streams.inputs if streams.systems[stream.system].shows_positions]
    return [ShownPositions(group, inputs, streams.admins)]


class ShownPositions:
    """Shows the positions of the newest commit. A failure is logged: the next commit shows its own."""

    def __init__(self, group: str, inputs: Iterable[SystemStream], admins: Mapping[str, SystemAdmin]) -> None:
        self._group = group
        self._inputs = frozenset(inputs)
        self._admins = admins
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="positions")
        self._lock = threading.Lock()
        self._next: Shown | None = None
        self._running: Future[None] | None = None
        self._said = ""
        """The last failure, which is not logged again."""

    def behind(self, record: CheckpointRecord) -> None:
        """Show these positions, or after those that are being shown: the newest wait, older ones are left out."""
        with self._lock:
            self._next = lowest(record.next_offsets, self._inputs)
            if self._running is None or self._running.done():
                self._running = self._thread.submit(self._show)

    def close(self, *, wait: bool) -> None:
        """End the thread. No call follows."""
        self._thread.shutdown(wait=wait, cancel_futures=not wait)

    def _show(self) -> None:
        while (positions := self._taken()) is not None:
            for system in sorted({ssp.system for ssp in positions}):
                own = {ssp: offset for ssp, offset in positions.items() if ssp.system == system}
                try:
                    self._admins[system].show_positions(self._group, own)
                except Exception as error:
                    if str(error) != self._said:
                        self._said = str(error)
                        logger.warning("the next commit tries again: %s", error)
                else:
                    self._said = ""

    def _taken(self) -> Shown | None:
        with self._lock:
            taken, self._next = self._next, None
            if taken is None:
                self._running = None
            return taken


def lowest(next_offsets: Mapping[int, Mapping[SystemStreamPartition, int]], inputs: Iterable[SystemStream]) -> Shown:
    """The position of each partition of these inputs; of a partition that several tasks read, the lowest.

    Example:
        >>> trips, rates = (SystemStreamPartition("kafka", name, 0) for name in ("trips", "rates"))
        >>> lowest({0: {trips: 7, rates: 3}, 1: {trips: 5}}, [trips.system_stream])
        {SystemStreamPartition(system='kafka', stream='trips', partition=0): 5}
    """
    wanted, found = frozenset(inputs), Shown()
    for own in next_offsets.values():
        for ssp, offset in own.items():
            if ssp.system_stream in wanted:
                found[ssp] = min(offset, found.get(ssp, offset))
    return found
