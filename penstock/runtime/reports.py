"""The report of an attempt to the driver, and the outcome of a batch, which is decided from the reports alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from penstock.base.documents import decoder, decoding
from penstock.batch.batch import NOTHING_DUE, Due, TaskSsp
from penstock.batch.portions import PortionRead
from penstock.checkpoint.streams import Ranges
from penstock.errors import ContainerLostError, FailedMessage
from penstock.graph.topology import Topology
from penstock.metrics.snapshot import Row
from penstock.runtime.context import SspTable
from penstock.runtime.messages.incoming import add_marks, mark_of
from penstock.runtime.messages.packet import REPORT_STAGE, Packet, PacketKind
from penstock.state.engines.engine import EngineFailedError


@dataclass(frozen=True, slots=True)
class Report:
    """The report of an attempt: who it was, whose rows it read, and its result."""

    stage: int
    task: int
    token: str
    read: Mapping[int, int]
    """Source stage -> the mark of its attempts that were read (`mark_of`). Empty if it failed before it read any."""
    messages: int = 0
    dead_letters: int = 0
    written: dict[str, int] = field(default_factory=dict)
    """Output stream -> messages written (sink stage)."""
    appended: dict[str, dict[int, Ranges]] = field(default_factory=dict)
    """Durable intermediate stream -> partition -> the ranges of offsets that were written (sink stage)."""
    commit: bool = False
    shutdown: bool = False
    failed: FailedMessage | None = None
    error: tuple[str, str] | None = None
    """Kind and text of an error that is not the application's: a range that no longer exists, a fenced writer, a store
    whose engine failed."""
    upstream_failed: bool = False
    """A source failed, so this attempt did nothing."""
    inputs: dict[int, PortionRead] = field(default_factory=dict)
    """Origin code of an input's partition -> the portion that was read (stage 0)."""
    next_due: dict[str, Due] = field(default_factory=dict)
    """By operator id, the times of its oldest timers that have not fired. Absent: it has none."""
    process_ns: int = 0
    metrics: list[Row] = field(default_factory=list)
    """The counts of the stores, and the metrics of the tasks. They count once the batch has ended."""
    changed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Store → how many keys the attempt wrote or deleted, and how many of these it deleted."""
    dead_letter: FailedMessage | None = None
    """The first dead letter, without its traceback."""

    def packet(self) -> Packet:
        payload = msgspec.msgpack.encode(self)
        return Packet(
            self.task, REPORT_STAGE, PacketKind.REPORT, self.stage, self.task, self.token, -1, -1, 0, 0, payload
        )

    @classmethod
    def decode(cls, payload: bytes) -> Report:
        """Raises CorruptError if the payload is not a report."""
        with decoding("what an attempt reported is damaged"):
            return decoder(cls).decode(payload)


def engine_error(error: EngineFailedError, task: int) -> tuple[str, str]:
    """A failed engine as an attempt's error. It is treated as a lost container: a new epoch, in which the task is
    restored."""
    return ContainerLostError.__name__, f"task {task}: {error}"


@dataclass(frozen=True, slots=True)
class SuccessfulBatch:
    """Every (stage, task) was read under exactly one token."""

    tokens: dict[int, dict[int, str]]
    """Task -> container stage -> the token End applies."""
    messages_in: int
    messages_out: int
    written: dict[str, int]
    dead_letters: int
    commit: bool
    shutdown: bool
    inputs: dict[TaskSsp, PortionRead] = field(default_factory=dict)
    next_due: dict[str, Due] = field(default_factory=dict)
    """By operator, the times of the oldest timers of all tasks."""
    appended: dict[str, dict[int, Ranges]] = field(default_factory=dict)
    """By durable intermediate stream and partition, the ranges of offsets that were written."""
    dead_letter: FailedMessage | None = None


@dataclass(frozen=True, slots=True)
class InconsistentReports:
    """The reports do not fit together: a stage was run again after somebody had read its old rows. Run it again."""

    reason: str


@dataclass(frozen=True, slots=True)
class UserCodeFailed:
    """The application failed. Running the batch again would fail the same way."""

    failed: FailedMessage


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Something other than the application cannot go on: a range is gone, a writer was fenced, a store has to be
    restored (kind ContainerLostError)."""

    kind: str
    text: str


Outcome: TypeAlias = SuccessfulBatch | InconsistentReports | UserCodeFailed | JobFailed


def decide_outcome(reports: Iterable[Report], topology: Topology, tasks: int) -> Outcome:
    """Decide which attempts count, and if the batch succeeded.

    A batch is good only if every stage of every task reported exactly once, and everybody who read its rows read
    those of the very attempt that reported.
    """
    by_place: dict[tuple[int, int], Report] = {}
    for report in reports:
        place = (report.stage, report.task)
        if place in by_place:
            return InconsistentReports(f"stage {place[0]} task {place[1]} reported twice")
        by_place[place] = report
    return (
        _missing(by_place, topology, tasks)
        or _not_read(by_place, topology)
        or _failure(by_place)
        or _success(by_place, topology)
    )


def _missing(by_place: dict[tuple[int, int], Report], topology: Topology, tasks: int) -> Outcome | None:
    stages = [stage.number for stage in topology.stages]
    if topology.sink is not None:
        stages.append(topology.sink)
    for stage in stages:
        for task in range(tasks):
            if (stage, task) not in by_place:
                return InconsistentReports(f"stage {stage} task {task} did not report")
    if len(by_place) != len(stages) * tasks:
        return InconsistentReports("a report came from a stage or task that does not exist")
    return None


def _not_read(by_place: dict[tuple[int, int], Report], topology: Topology) -> Outcome | None:
    """An attempt that read another one than the one that reported: that was run again meanwhile."""
    marks = {(stage, task): mark_of(stage, [(task, report.token)]) for (stage, task), report in by_place.items()}
    whole: dict[int, int] = {}
    for (stage, _), mark in marks.items():
        whole[stage] = add_marks(whole.get(stage, 0), mark)
    for (stage, task), report in by_place.items():
        if not report.read and (report.failed or report.error):
            continue
        senders = topology.sources_of(stage) if stage else ()
        everyone = stage > 0 and topology.is_shuffled(stage)
        expected = {source: whole[source] if everyone else marks[source, task] for source in senders}
        if report.read != expected:
            other = min(s for s in {*expected, *report.read} if expected.get(s) != report.read.get(s))
            return InconsistentReports(
                f"stage {stage} task {task} did not read exactly the attempts of stage {other} that reported: one of "
                "them was run again"
            )
    return None


def _failure(by_place: dict[tuple[int, int], Report]) -> Outcome | None:
    """The first failure in the order of stages: the later ones follow from it. A task that has to be restored comes
    first: the cause of the other failures may be gone or present again after the restore."""
    for _, report in sorted(by_place.items()):
        if report.error is not None and report.error[0] == ContainerLostError.__name__:
            return JobFailed(*report.error)
    for _, report in sorted(by_place.items()):
        if report.failed is not None:
            return UserCodeFailed(report.failed)
        if report.error is not None:
            return JobFailed(*report.error)
    if any(report.upstream_failed for report in by_place.values()):
        return InconsistentReports("a source is said to have failed, but none reported a failure")
    return None


def _success(by_place: dict[tuple[int, int], Report], topology: Topology) -> SuccessfulBatch:
    ssps = SspTable.of(topology.graph)
    through = {str(op.stream) for op in topology.graph.intermediates}
    tokens: dict[int, dict[int, str]] = {}
    written: dict[str, int] = {}
    for (stage, task), report in by_place.items():
        if 0 < stage < len(topology.stages):
            tokens.setdefault(task, {})[stage] = report.token
        for name, count in report.written.items():
            written[name] = written.get(name, 0) + count
    return SuccessfulBatch(
        tokens=tokens,
        messages_in=sum(r.messages for (stage, _), r in by_place.items() if stage == 0),
        inputs={
            TaskSsp(task, ssps[origin]): read
            for (stage, task), r in by_place.items()
            if stage == 0
            for origin, read in r.inputs.items()
        },
        messages_out=sum(count for name, count in written.items() if name not in through),
        written=written,
        dead_letters=sum(r.dead_letters for r in by_place.values()),
        commit=any(r.commit for r in by_place.values()),
        shutdown=any(r.shutdown for r in by_place.values()),
        next_due=earliest(report.next_due for report in by_place.values()),
        appended=_appended(by_place.values()),
        dead_letter=next((r.dead_letter for r in by_place.values() if r.dead_letter is not None), None),
    )


def _appended(reports: Iterable[Report]) -> dict[str, dict[int, Ranges]]:
    """Each partition is written by one task."""
    found: dict[str, dict[int, Ranges]] = {}
    for report in reports:
        for stream, by_partition in report.appended.items():
            found.setdefault(stream, {}).update(by_partition)
    return found


def earliest(found: Iterable[Mapping[str, Due]]) -> dict[str, Due]:
    """By operator, the oldest timers of several tasks."""
    merged: dict[str, Due] = {}
    for each in found:
        for operator, due in each.items():
            pairs = zip(due, merged.get(operator, NOTHING_DUE), strict=True)
            event, processing = (min((t for t in pair if t is not None), default=None) for pair in pairs)
            if (event, processing) != NOTHING_DUE:
                merged[operator] = (event, processing)
    return merged
