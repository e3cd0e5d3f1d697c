"""The progress of a job in its inputs, from its log and from the streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.admin.questions import Answer, Questions, answer_or_problem
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import counted, utc_text
from penstock.batch.watermarks import TIME, holds_back_text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.facts import Column, Facts, FactTable
from penstock.start.positions import continue_in
from penstock.system.base import OpenTransaction, PartitionOffsets, System
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.registry import open_system

_STANDSTILL_MS = 10_000
"""Younger transactions are not shown."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """`next_offset` is the smallest one if several tasks read the partition. `lag` is how much comes after the last
    checkpoint, in the stream's `lag_unit`; None if the stream cannot be read. `event_time_ms` is the highest event time
    that was read, in epoch milliseconds; None if the application does not use event time, and before the first message.
    `lost` is how many messages were deleted before the job had read them, and are missing from its state."""

    partition: int
    next_offset: int
    upcoming: int | None
    lag: int | None
    event_time_ms: int | None = None
    lost: int = 0
    open_transaction: OpenTransaction | None = None
    """A writer's transaction that has kept messages from being read for some seconds."""
    read: int | None = None
    """The next offset of the batches that have ended, as of some seconds ago; None if the job does not run."""
    unread: int | None = None
    """The distance of `read` from the end, in the stream's `lag_unit`; None if one of the two is not known."""

    @property
    def left(self) -> int | None:
        """The part that a run has not read yet; if none runs, the part after the last checkpoint. None if unknown."""
        return self.lag if self.read is None else self.unread


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input stream; `problem` says why its ends are unknown or do not fit."""

    stream: str
    partitions: tuple[PartitionStatus, ...]
    lag: int | None
    problem: str | None
    dense_offsets: bool = True
    """True if offsets have no gaps. With gaps, `lag` and `lost` count offsets, and there are at most so many
    messages."""
    held_back_by: int | None = None
    """The partition with the lowest event time, which holds the watermark back; None without event time, and if all
    are idle. It does so until it is idle."""
    lag_unit: str = "message"
    """The unit of `lag`: `file` for a folder."""


_COLUMNS = (
    Column("stream", of=lambda row: row[0].stream),
    Column("partition", of=lambda row: "total" if row[1] is None else row[1].partition, right=True),
    Column("next", of=lambda row: row[1] and row[1].next_offset, right=True),
    Column("read", of=lambda row: row[1] and row[1].read, right=True, optional=True),
    Column("upcoming", of=lambda row: row[1] and row[1].upcoming, right=True, first_to_go=3),
    Column("lag", of=lambda row: _lag((row[1] or row[0]).lag, row[0].lag_unit), right=True, most_first=True),
    Column("unread", of=lambda row: row[1] and row[1].unread, right=True, optional=True, most_first=True),
    Column("event time", utc_text, of=lambda row: row[1] and row[1].event_time_ms, optional=True, first_to_go=2),
    Column("lost", of=lambda row: (row[1] and row[1].lost) or None, right=True, optional=True, first_to_go=1),
)
"""The columns of pairs: an input, and one of its partitions or None for its sum."""


def _lag(lag: int | None, unit: str) -> int | str | None:
    return lag if lag is None or unit == "message" else counted(lag, unit)


def input_facts(inputs: Sequence[InputStatus]) -> Facts:
    """The partitions of all inputs, and what is wrong with them."""
    rows = [(each, part) for each in inputs for part in each.partitions]
    totals = [(each, None) for each in inputs if len(each.partitions) > 1]
    table = FactTable("Inputs, as of the last checkpoint", rows, totals, headed=_COLUMNS)
    return Facts.some({}, table, notes=(note for each in inputs for note in _notes(each)))


def _notes(status: InputStatus) -> Iterator[str]:
    if status.problem is not None:
        yield f"warning: stream `{status.stream}`: {status.problem}"
    for part in status.partitions:
        if part.partition == status.held_back_by:
            yield f"note: {holds_back_text(status.stream, part.partition, part.event_time_ms)}"
        if part.open_transaction is not None:
            yield f"warning: stream `{status.stream}` partition {part.partition}: {part.open_transaction}"
        if part.lost:
            most = "" if status.dense_offsets else "at most "
            yield (
                f"warning: the state lacks {most}{counted(part.lost, 'message')} of `{status.stream}` partition "
                f"{part.partition}: they were deleted before the job had read them (on.data.loss=skip)"
            )
    if not status.dense_offsets and status.lag_unit == "message":
        yield f"note: the offsets of `{status.stream}` have gaps: its lag counts offsets, and may be of fewer messages"


class AskedInputs:
    """The inputs of a job as of its last checkpoint, whose ends are asked of the systems with other questions."""

    def __init__(self, view: LogView, config: JobConfig, questions: Questions) -> None:
        self._view = view
        self._config = config
        last = view.checkpoints[-1] if view.checkpoints else None
        self._positions = {} if last is None else _smallest(last.next_offsets)
        self._answers: dict[SystemStream, Answer[_Now]] = {}
        for stream in sorted(self._positions):
            if last is not None and not _is_frame(stream, last):  # Spark alone knows what comes next in a frame
                self._answers[stream] = questions.put(stream.system, partial(_look, stream, config))

    def statuses(self, read: Mapping[SystemStreamPartition, int] | None = None) -> tuple[InputStatus, ...]:
        """The inputs against their ends, once the questions are answered. `read`: the present positions of a run."""
        if not self._view.checkpoints:
            return ()
        last, found = self._view.checkpoints[-1], []
        event_times = last.section(TIME).event_times
        times = _smallest(event_times)
        for stream, next_offsets in sorted(self._positions.items()):
            own = {ssp.partition: offset for ssp, offset in (read or {}).items() if ssp.system_stream == stream}
            one = _input(stream, next_offsets, last, self._config, self._now(stream), own)
            one = _with(one, lost={at.partition: lost for at, lost in last.lost.items() if at.system_stream == stream})
            idle = _idle(one, self._view, self._config.stream(stream).idle_ms)
            found.append(_with_times(one, times.get(stream, {}), last, idle) if event_times else one)
        return tuple(found)

    def _now(self, stream: SystemStream) -> _Now | PenstockError | None:
        return answer_or_problem(self._answers[stream]) if stream in self._answers else None


def _input(
    stream: SystemStream,
    next_offsets: Mapping[int, int],
    last: CheckpointRecord,
    config: JobConfig,
    now: _Now | PenstockError | None,
    read: Mapping[int, int],
) -> InputStatus:
    if now is None:
        return input_status(stream, next_offsets, {}, None)
    if isinstance(now, PenstockError):
        return input_status(stream, next_offsets, {}, f"its ends are unknown: {now}")
    misfit = _misfit(stream, next_offsets, now.ends, skips=config.stream(stream).skips_lost)
    if now.identity is not None and last.identities.get(stream, now.identity) != now.identity:
        misfit = f"it was deleted and created again: the job will not start. {continue_in(stream)}"
    one = input_status(stream, next_offsets, now.ends, misfit, system=now.system)
    before_ms = SYSTEM_CLOCK.now_ms() - _STANDSTILL_MS
    old = {partition: each for partition, each in now.transactions.items() if each.since_ms <= before_ms}
    return _with(_with_read(one, read, now.system), open_transaction=old)


def _with(status: InputStatus, **fields: Mapping[int, Any]) -> InputStatus:
    """The status with values of fields of its partitions, by their numbers."""

    def of(each: PartitionStatus) -> PartitionStatus:
        at = each.partition
        return replace(each, **{name: values[at] for name, values in fields.items() if at in values})

    return replace(status, partitions=tuple(map(of, status.partitions)))


def _with_read(status: InputStatus, read: Mapping[int, int], system: System) -> InputStatus:
    def of(each: PartitionStatus) -> PartitionStatus:
        at = read.get(each.partition)
        if at is None or each.upcoming is None:
            return replace(each, read=at)
        at = max(at, each.next_offset)  # the checkpoint may be newer
        return replace(each, read=at, unread=system.lag(min(at, each.upcoming), each.upcoming))

    return replace(status, partitions=tuple(map(of, status.partitions)))


def _is_frame(stream: SystemStream, last: CheckpointRecord) -> bool:
    return stream.system == QUERY_SYSTEM and stream in last.identities


def _smallest(values: Mapping[int, Mapping[SystemStreamPartition, int]]) -> dict[SystemStream, dict[int, int]]:
    """By stream and partition, the smallest value of all tasks."""
    found: dict[SystemStream, dict[int, int]] = defaultdict(dict)
    for own in values.values():
        for ssp, value in own.items():
            before = found[ssp.system_stream].get(ssp.partition, value)
            found[ssp.system_stream][ssp.partition] = min(value, before)
    return found


def _idle(status: InputStatus, view: LogView, idle_ms: int) -> set[int]:
    """The partitions that were idle at the last checkpoint. A partition with nothing unread now was at its end since
    the oldest checkpoint of the epoch that has the same position: a start begins to count again."""
    last = view.checkpoints[-1]
    still = {each.partition for each in status.partitions if each.lag == 0}
    idle: set[int] = set()
    for record in reversed(view.checkpoints):
        if record.epoch != last.epoch or not still:
            break
        there = _smallest(record.next_offsets).get(SystemStream.parse(status.stream), {})
        still &= {each.partition for each in status.partitions if there.get(each.partition) == each.next_offset}
        if last.batch_time_ms - record.batch_time_ms >= idle_ms:
            idle |= still
    return idle


def _with_times(
    status: InputStatus, times: Mapping[int, int], last: CheckpointRecord, idle: Collection[int]
) -> InputStatus:
    """The event times of its partitions. The lowest one that is not idle holds the others back, or one that has none
    yet; not so in a DataFrame, because which task met a row says nothing about its time."""
    partitions = tuple(replace(each, event_time_ms=times.get(each.partition)) for each in status.partitions)
    if _is_frame(SystemStream.parse(status.stream), last):
        return replace(status, partitions=partitions)
    ended = {ssp.partition for ssp in last.ended_inputs if str(ssp.system_stream) == status.stream}
    reached = {each.partition: times.get(each.partition, NO_WATERMARK) for each in partitions}
    slowest = min(
        (part for part in reached if part not in ended and part not in idle), key=reached.__getitem__, default=None
    )
    return replace(status, partitions=partitions, held_back_by=slowest)


@dataclass(frozen=True, slots=True)
class _Now:
    """The present state of a stream."""

    ends: Mapping[int, PartitionOffsets]
    system: System
    identity: str | None
    transactions: Mapping[int, OpenTransaction]


def _look(stream: SystemStream, config: JobConfig) -> _Now:
    system = open_system(config.system(stream.system))
    with closing(system.admin()) as admin:
        identity = admin.stream_identity(stream.stream)
        ends = admin.offsets(stream.stream)
        return _Now(ends, system, identity, admin.open_transactions(stream.stream))


def input_status(
    stream: SystemStream,
    next_offsets: Mapping[int, int],
    ends: Mapping[int, PartitionOffsets],
    problem: str | None,
    *,
    system: System | None = None,
) -> InputStatus:
    """Positions against the stream's ends, which some system has."""
    partitions = []
    for partition, offset in sorted(next_offsets.items()):
        end = ends.get(partition)
        upcoming = None if end is None else end.upcoming
        lag = None if system is None or upcoming is None or upcoming < offset else system.lag(offset, upcoming)
        partitions.append(PartitionStatus(partition, offset, upcoming, lag))
    lags = [each.lag for each in partitions]
    total = None if None in lags else sum(lag for lag in lags if lag is not None)
    found = InputStatus(str(stream), tuple(partitions), total, problem)
    return found if system is None else replace(found, dense_offsets=system.dense_offsets, lag_unit=system.lag_unit)


def _misfit(
    stream: SystemStream, next_offsets: Mapping[int, int], ends: Mapping[int, PartitionOffsets], *, skips: bool = False
) -> str | None:
    """The contradiction between positions and ends, if any. `skips`: lost messages are skipped."""
    if next_offsets.keys() != ends.keys():
        return (
            f"it has {counted(len(ends), 'partition')} now, the checkpoint has {len(next_offsets)}: the job will "
            "not start"
        )
    for partition, offset in sorted(next_offsets.items()):
        end = ends[partition]
        if not end.oldest <= offset <= end.upcoming:
            ssp = SystemStreamPartition(stream.system, stream.stream, partition)
            holds = f"{ssp} holds offsets from {end.oldest} to before {end.upcoming}, the next to read is {offset}"
            return (
                f"{holds}: the messages between are lost, and will be skipped"
                if skips and offset < end.oldest
                else holds
            )
    return None
