"""Event time at each operator, as a function of the batches that have ended. Pure.

A watermark is of an operator, not of a task: the whole job runs a batch at once, so the driver knows after each batch
what every partition has read. A `Batch` has two of them. The *late* watermark is the firing watermark of the previous
batch: a message below it is late. Timers and windows up to the *firing* watermark fire at the end of the batch's
input. Their results are at or above the late watermark, and are therefore late nowhere downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME, NO_WATERMARK, WatermarkPolicy
from penstock.base.documents import Count, Form, Time, dataclass_form, mapping, text
from penstock.base.wording import utc_text
from penstock.batch.batch import Ends, Positions, TaskSsp
from penstock.checkpoint.sections import Section
from penstock.checkpoint.streams import IntermediateStream
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import is_numbered, own_stores

_Reached: TypeAlias = tuple[int, tuple[int, bool] | None]
"""A watermark, and since when it is idle: a batch time, and True if there was a message before it; None: it is not
idle."""


@dataclass(frozen=True, slots=True)
class GivenWatermark:
    """The watermark of an input in one batch, if another system sets it."""

    late: int
    firing: int


class QueryWatermark:
    """The policy of an input that a streaming query hands over, with the watermark of its plan (`GivenWatermark`). The
    rows alone do not tell it, because the query may have dropped some before, or may take the lowest of several
    sources."""

    def watermark(self, highest_event_time_ms: int) -> int:
        """Always none: only the query knows it."""
        return NO_WATERMARK


@dataclass(frozen=True, slots=True)
class TimedInput:
    """An input: its stream, and the policy that turns its event times into a watermark."""

    stream: SystemStream
    policy: WatermarkPolicy

    def watermark_of(self, highest_ms: int | None) -> int:
        """The policy's watermark for the highest event time; None: there is none yet. Raises ConfigError if the policy
        fails, or returns no number."""
        if highest_ms is None:
            return NO_WATERMARK
        try:
            said = self.policy.watermark(highest_ms)
        except Exception as error:
            raise ConfigError(
                f"the watermark policy of input `{self.stream}` failed for {highest_ms}: {type(error).__name__}: "
                f"{error}"
            ) from error
        if type(said) is not int:
            raise ConfigError(
                f"the watermark policy of input `{self.stream}` returned {said!r}: expected epoch milliseconds, an int"
            )
        return max(NO_WATERMARK, min(said, END_OF_TIME - 1))


@dataclass(frozen=True, slots=True)
class TimeFlow:
    """The operators in topological order, each with those whose watermarks hold it back, and the inputs."""

    upstream: Mapping[str, tuple[str, ...]]
    inputs: Mapping[str, TimedInput]
    intermediates: Mapping[str, tuple[str, SystemStream]] = field(default_factory=dict)
    """By the id of the operator that reads a durable intermediate stream: its writer, and the stream."""

    @classmethod
    def of(cls, graph: ApplicationGraph) -> TimeFlow:
        return cls(
            graph.time_sources(),
            {op.id: TimedInput(op.stream, op.watermark_policy) for op in graph.inputs},
            {op.id: (op.writer, op.stream) for op in graph.intermediates},
        )


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of one batch, in epoch milliseconds, by operator id. Absent: NO_WATERMARK."""

    late: Mapping[str, int] = field(default_factory=dict)
    firing: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    """The output watermark of operators with due timers of earlier batches: below the oldest of those. Other operators
    have their firing watermark."""


@dataclass(frozen=True, slots=True)
class PartitionAtEnd:
    """A partition whose position is at its end."""

    position: int
    since_ms: int
    """The batch time when that was first seen."""


def at_the_end(
    before: Mapping[TaskSsp, PartitionAtEnd], positions: Positions, ends: Ends, now_ms: int
) -> dict[TaskSsp, PartitionAtEnd]:
    """The partitions whose position is at their end now, and since when.

    Args:
        before: the previous answer within this run.
        now_ms: the batch time.
    """
    found = {}
    for at, position in positions.items():
        if position >= ends[at.ssp].upcoming:
            known = before.get(at)
            same = known is not None and known.position == position
            found[at] = known if same and known is not None else PartitionAtEnd(position, now_ms)
    return found


def ended_partitions(positions: Positions, ends: Ends) -> frozenset[SystemStreamPartition]:
    """The partitions that have ended, and that every task has read to their end."""
    if not any(end.ended for end in ends.values()):
        return frozenset()
    unread = {at.ssp for at, position in positions.items() if position < ends[at.ssp].upcoming}
    return frozenset(at.ssp for at in positions if ends[at.ssp].ended and at.ssp not in unread)


def idle_partitions(
    waiting: Mapping[TaskSsp, PartitionAtEnd], idle_ms: Mapping[SystemStream, int], now_ms: int
) -> dict[TaskSsp, int]:
    """The partitions that have waited at their end for the time that their stream allows, each with the time when it
    became idle."""
    idle = {at: each.since_ms + idle_ms[at.ssp.system_stream] for at, each in waiting.items()}
    return {at: since for at, since in idle.items() if since <= now_ms}


def next_watermarks(
    flow: TimeFlow,
    readers: Collection[TaskSsp],
    event_times: Mapping[TaskSsp, int],
    last: Mapping[str, int],
    *,
    idle: Mapping[TaskSsp, int] | None = None,
    ended: Collection[SystemStreamPartition] = (),
    oldest: Mapping[str, int] | None = None,
    intermediate: Mapping[SystemStream, IntermediateStream] | None = None,
    carried: bool = False,
    given: Mapping[SystemStream, GivenWatermark] | None = None,
) -> Watermarks:
    """The watermarks of the next batch. None is below that of the last batch.

    An input's watermark is the lowest of its partitions, an operator's the lowest of its upstream. Partitions and
    inputs that are idle or have ended do not count. If all are idle, the watermark stays where it was when the last of
    them became idle; a partition without any message becomes idle before others of the same moment. If all have ended,
    it is END_OF_TIME. A new operator begins with the watermark of its upstream.

    Args:
        readers: every partition of every input, with each task that reads it.
        event_times: the highest event time that ended batches have read.
        last: the firing watermarks of the last batch.
        idle: the partitions that are idle, each with the batch time when it became idle.
        oldest: by operator id, the time of the oldest event-time timer. If it is due, it may not fire in the next
            batch, so the operator's output stays below it.
        intermediate: the durable intermediate streams. The reader of one has the watermark of the last batch whose
            messages it has read.
        carried: the streams have carried the watermarks to their readers, as the next batches do if there is
            nothing to read.
        given: the inputs whose watermark does not follow from the messages read.
    """
    given, oldest, idle = given or {}, oldest or {}, idle or {}
    of_stream = _reached_by_partitions(flow, [at for at in readers if at.ssp not in ended], event_times, idle)
    late: dict[str, int] = {}
    firing: dict[str, int] = {}
    held: dict[str, int] = {}
    past: dict[str, int] = {}
    reached: dict[str, _Reached] = {}
    for op, upstream in flow.upstream.items():
        begin = NO_WATERMARK
        if op in flow.intermediates:
            writer, stream = flow.intermediates[op]
            read = (intermediate or {}).get(stream, IntermediateStream())
            found, idle_since = _reached_by_reader(read, reached[writer], carried=carried)
        elif (source := flow.inputs.get(op)) is None:
            begin = min(past[up] for up in upstream)
            found, idle_since = _lowest([reached[up] for up in upstream])
        elif source.stream in given:
            begin, found, idle_since = given[source.stream].late, given[source.stream].firing, None
        else:
            found, idle_since = _lowest(of_stream.get(source.stream, []))
        late[op] = last.get(op, begin)
        firing[op] = max(late[op], found)
        due = oldest.get(op)
        past[op] = late[op] if due is None or due > late[op] else due - 1
        if due is not None and due <= firing[op]:
            held[op], idle_since = due - 1, None
        reached[op] = held.get(op, firing[op]), idle_since
    return Watermarks(_known(late), _known(firing), held)


def _reached_by_reader(read: IntermediateStream, writer: _Reached, *, carried: bool) -> _Reached:
    """The watermark of the reader of a durable intermediate stream, and since when it is idle."""
    if read.unread:
        return read.watermark, None
    found, idle_since = writer
    return max(read.watermark, found) if carried else read.watermark, idle_since


def _reached_by_partitions(
    flow: TimeFlow, readers: Iterable[TaskSsp], event_times: Mapping[TaskSsp, int], idle: Mapping[TaskSsp, int]
) -> dict[SystemStream, list[_Reached]]:
    """By input, the watermark of each of its partitions, and since when it is idle."""
    found: dict[SystemStream, list[_Reached]] = {}
    policies = {source.stream: source for source in flow.inputs.values()}
    for at in readers:
        if (stream := at.ssp.system_stream) in policies:
            watermark = policies[stream].watermark_of(event_times.get(at))
            since = (idle[at], at in event_times) if at in idle else None
            found.setdefault(stream, []).append((watermark, since))
    return found


def closing_watermarks(
    flow: TimeFlow, last: Mapping[str, int], closes: Collection[str] | None = None, closed: Collection[str] = ()
) -> Watermarks:
    """The watermarks of a batch that brings operators to their end: all that waits in them for event time fires.

    Args:
        closes: these operators; None: all. The watermarks of the others do not move.
        closed: the operators that an earlier batch has brought to their end.
    """
    done = {op for op in flow.upstream if closes is None or op in closes or op in closed}
    late = next_watermarks(flow, (), {}, last).late
    promised = _promised(flow, last)
    held = {op: at for op, at in promised.items() if op not in done and at < late.get(op, NO_WATERMARK)}
    return Watermarks(late, {**late, **dict.fromkeys(done, END_OF_TIME)}, held)


def slowest_partitions(
    flow: TimeFlow,
    readers: Iterable[TaskSsp],
    event_times: Mapping[TaskSsp, int],
    *,
    idle: Collection[TaskSsp] = (),
    ended: Collection[SystemStreamPartition] = (),
) -> dict[SystemStream, TaskSsp]:
    """The partition of each input that holds its watermark back. An input that is idle or has ended has none."""
    found: dict[SystemStream, tuple[int, TaskSsp]] = {}
    policies = {each.stream: each for each in flow.inputs.values()}
    for at in sorted(readers):
        stream = at.ssp.system_stream
        if at not in idle and at.ssp not in ended:
            watermark = policies[stream].watermark_of(event_times.get(at))
            if stream not in found or watermark < found[stream][0]:
                found[stream] = watermark, at
    return {stream: at for stream, (_, at) in found.items()}


def holding_back(
    flow: TimeFlow,
    readers: Collection[TaskSsp],
    event_times: Mapping[TaskSsp, int],
    *,
    quiet: Collection[TaskSsp],
    idle: Collection[TaskSsp],
    ended: Collection[SystemStreamPartition],
    fires: Callable[[Collection[TaskSsp]], bool],
) -> list[TaskSsp]:
    """The quiet partitions without which something would fire, one for each input.

    Args:
        quiet: partitions without new messages that are not idle yet.
        fires: returns True if something would fire if these partitions were idle.
    """
    policies = {each.stream: each for each in flow.inputs.values()}
    reached = {
        at: policies[at.ssp.system_stream].watermark_of(event_times.get(at)) for at in readers if at.ssp not in ended
    }
    furthest = max(reached.values(), default=NO_WATERMARK)
    slow = {at for at in quiet if reached.get(at, furthest) < furthest}
    if not slow or not fires({*idle, *slow}):
        return []
    slowest = slowest_partitions(flow, readers, event_times, idle=idle, ended=ended)
    return [
        at
        for stream, at in slowest.items()
        if at in slow and not fires({*idle, *(other for other in slow if other.ssp.system_stream != stream)})
    ]


def holds_back_text(stream: SystemStream | str, partition: int, event_time_ms: int | None) -> str:
    """The sentence that names the partition which holds a watermark back, with its highest event time."""
    reached = (
        "it has had no message yet" if event_time_ms is None else f"its highest event time is {utc_text(event_time_ms)}"
    )
    return f"`{stream}` partition {partition} holds the watermark back: {reached}"


def reached_text(watermark_ms: int) -> str:
    """A watermark for people."""
    return "its inputs have ended" if watermark_ms == END_OF_TIME else utc_text(watermark_ms)


@dataclass(frozen=True, slots=True)
class TimeSection:
    """Event time at a checkpoint. Empty if the application does not use it, before the first message, and after a batch
    that ended the job's stream or drained it."""

    event_times: Mapping[int, Mapping[SystemStreamPartition, int]] = field(default_factory=dict)
    """The highest event time that each task has read of each partition, in epoch milliseconds."""
    watermarks: Mapping[str, Time] = field(default_factory=dict)
    """The firing watermark of each operator in the last batch."""
    inputs: Mapping[str, SystemStream] = field(default_factory=dict)
    """The streams of the operators that are inputs. Empty in checkpoints of older versions."""

    def watermarks_in(self, graph: ApplicationGraph, stores: Collection[str]) -> dict[str, int]:
        """The watermarks of the operators of an application that were there at the checkpoint.

        Operators without an id are numbered, in another order if the application was changed. An input is known by its
        stream, and a numbered operator by its stores: one without any follows from the inputs.

        Args:
            graph: the application's.
            stores: those of the checkpoint.
        """
        renamed = graph.state_ids()
        now = {old: op for op, old in renamed.items()}
        by_stream = {op.stream: op.id for op in graph.inputs}
        found: dict[str, int] = {}
        for op, watermark in self.watermarks.items():
            if op in self.inputs:
                if (own := by_stream.get(self.inputs[op])) is not None:
                    found[own] = watermark
            elif not (self.inputs and is_numbered(op)) or own_stores({op, renamed.get(op, op)}).intersection(stores):
                found[now.get(op, op)] = watermark
        return found


_TIMES = mapping(Form(Count), mapping(text(SystemStreamPartition.parse), Form(Time)))
_STREAMS = mapping(Form(str), text(SystemStream.parse))
TIME = Section("time", TimeSection, dataclass_form(TimeSection, event_times=_TIMES, inputs=_STREAMS), needed=True)


def later_event_times(before: Mapping[TaskSsp, int], read: Iterable[tuple[TaskSsp, int | None]]) -> dict[TaskSsp, int]:
    """The highest event times after a batch that has read these. None falls."""
    after = dict(before)
    for at, highest in read:
        if highest is not None:
            after[at] = max(highest, after.get(at, highest))
    return after


def _promised(flow: TimeFlow, last: Mapping[str, int]) -> dict[str, int]:
    """By operator, the time before which its followers await nothing."""
    behind: dict[str, list[str]] = {op: [] for op in flow.upstream}
    for op, upstream in flow.upstream.items():
        for up in upstream:
            behind[up].append(op)
    promised: dict[str, int] = {}
    for op, upstream in flow.upstream.items():
        late = last.get(op, min((promised[up] for up in upstream), default=NO_WATERMARK))
        promised[op] = min([late, *(last[each] for each in behind[op] if each in last)])
    return promised


def _lowest(found: Sequence[_Reached]) -> _Reached:
    """The lowest of the active ones; if all are idle, of those that became idle last; END_OF_TIME if all have ended."""
    alive = [each for each in found if each[0] < END_OF_TIME]
    active = [watermark for watermark, idle_since in alive if idle_since is None]
    if active or not alive:
        return min(active, default=END_OF_TIME), None
    latest = max(since for _, since in alive if since is not None)
    return min(watermark for watermark, since in alive if since == latest), latest


def _known(watermarks: Mapping[str, int]) -> dict[str, int]:
    return {op: each for op, each in watermarks.items() if each > NO_WATERMARK}
