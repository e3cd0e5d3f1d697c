"""The feeds of a rehearsal: they make the batches that a job has made, and note those that they make."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.base.wording import listed
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import NOTHING, BatchRanges, Portion, PortionRead, up_to
from penstock.checkpoint.record import Closing
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.feed import End, Feed, Next, PlannedBatch, Skip
from penstock.errors import IncompatibleError
from penstock.replay.wing import ReadUpTo
from penstock.system.base import OffsetRange
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal.trace import Origin


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch that has ended: when it was, and what it read, in the order of tasks and of their portions."""

    planned: PlannedBatch
    ranges: Sequence[tuple[TaskSsp, int, int]]
    """Each from an offset up to another one."""

    @property
    def moment(self) -> BatchTime:
        return self.planned.moment


class Forwarding:
    """A feed around another one."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def begin(self) -> None:
        self.feed.begin()

    def next(self, boundary: Boundary) -> Next:
        return self.feed.next(boundary)

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        return self.feed.drain(boundary, operators)

    def has_lost(self, ranges: object) -> bool:
        return self.feed.has_lost(ranges)  # type: ignore[arg-type]

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        self.feed.ended(took_ms, read)

    def remaining(self, boundary: Boundary) -> int | None:
        return self.feed.remaining(boundary)


class NotedFeed(Forwarding):
    """Makes the batches that the checkpoints name, and others where they name none; and notes them. Time passes as in
    these batches, or evenly, as the messages are read, up to the time of the end."""

    def __init__(
        self,
        driver: InProcessDriver,
        clock: SettableClock,
        batches: Sequence[ReadUpTo],
        until_ms: int,
        closing: Closing | None = None,
    ) -> None:
        """`closing`: how everything fires behind the last message; None: only what is due."""
        super().__init__(driver.loop.parts.feed)
        self._drains = closing == "drained"
        self._closes = int(closing is not None)
        """The last batches of the checkpoints that are those in which the job is closed."""
        self._last: BatchTime | None = None
        self._sources = tuple(op.stream for op in driver.job.topology.graph.sources)
        self._batches = deque(batches)
        self._clock = clock
        self._first_ms, self._until_ms = clock.now_ms(), until_ms
        self._whole: int | None = None
        self._planned: PlannedBatch | None = None
        self.noted: list[ReadBatch] = []

    def next(self, boundary: Boundary) -> Next:
        left = self.feed.remaining(boundary) or 0
        self._whole = left if self._whole is None else self._whole
        share = 1.0 if not self._whole else 1 - left / self._whole
        batch = self._following(boundary)
        wanted_ms = self._first_ms + round((self._until_ms - self._first_ms) * share)
        if batch is not None:
            wanted_ms = batch.time_ms if batch.named else min(wanted_ms, batch.time_ms)
        self._clock.advance(max(0, wanted_ms - self._clock.now_ms()) / 1000)
        found = self.feed.next(boundary)
        if isinstance(found, Skip):
            gone = listed([str(each) for each in found.losses])
            raise IncompatibleError(f"the inputs do not have {gone} any more: begin with a newer checkpoint")
        if isinstance(found, End) and self._drains:
            found = self.feed.drain(boundary)
        ends = isinstance(found, End) or (isinstance(found, PlannedBatch) and found.control != "none")
        if ends and batch is not None and len(self._batches) > self._closes:
            found = self._of_time_alone(boundary, batch)
        elif batch is not None and isinstance(found, PlannedBatch):
            found = self._cut(found, batch, boundary)
        self._planned = found if isinstance(found, PlannedBatch) else None
        return found

    def _of_time_alone(self, boundary: Boundary, batch: ReadUpTo) -> PlannedBatch:
        """A batch that the job has made although nothing was to be read: a period began, or something was due."""
        self._batches.popleft()
        moment = BatchTime(batch.time_ms) if self._last is None else replace(self._last, time_ms=batch.time_ms)
        still = replace(moment, watermarks=replace(moment.watermarks, firing=dict(boundary.watermarks)))
        return PlannedBatch(NOTHING, {at.ssp: offset for at, offset in boundary.positions.items()}, still)

    def _following(self, boundary: Boundary) -> ReadUpTo | None:
        """The next batch of the checkpoints. It may read nothing: then time has passed."""
        while self._batches:
            batch = self._batches[0]
            if any(boundary.positions.get(at, to) < to for at, to in batch.positions.items()):
                return batch
            if batch.named and not batch.positions:
                return batch
            self._batches.popleft()
        return None

    def _cut(self, planned: PlannedBatch, batch: ReadUpTo, boundary: Boundary) -> PlannedBatch:
        """The planned batch, with what the job has read in its own; or at most what it had read by then, if it is not
        known in which batches."""
        if not batch.positions:
            self._batches.popleft()
        if not planned.ranges.portions.keys() & boundary.positions.keys():
            return planned  # something is due first
        at_most = up_to(planned.ranges.portions, batch.positions)
        portions = {at: each for at, each in at_most.items() if each.offsets.start < each.offsets.end}
        if batch.named or not portions:
            portions = _portions(boundary, batch, planned)
        return replace(planned, ranges=BatchRanges.group(portions, self._sources))

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        if (planned := self._planned) is not None:
            self._last = planned.moment
            portions = sorted(planned.ranges.portions.items(), key=lambda each: each[0].task)  # stable: a task's order
            ranges = [(at, portion.offsets.start, read[at].next_offset) for at, portion in portions]
            self.noted.append(ReadBatch(planned, ranges))
        super().ended(took_ms, read)


def _portions(boundary: Boundary, batch: ReadUpTo, planned: PlannedBatch) -> dict[TaskSsp, Portion]:
    """The portions that a batch read: of inputs up to its offsets, and of intermediate streams what is planned."""
    inner = {at: each for at, each in planned.ranges.portions.items() if at not in boundary.positions}
    of_inputs = ((at, first, batch.positions.get(at, first)) for at, first in boundary.positions.items())
    return inner | {
        at: Portion(OffsetRange(at.ssp, first, end), end - first) for at, first, end in of_inputs if first < end
    }


Range: TypeAlias = tuple[TaskSsp, int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a noted batch. `ranges` is empty for its beginning, at which a period may begin, and None for its end,
    at which everything fires that is due."""

    batch: ReadBatch
    ranges: Sequence[Range] | None
    alone: bool = False
    """It is one wanted message."""


def pieces_of(batch: ReadBatch, wanted: Set[Origin], *, begins: bool = False) -> Iterator[Piece]:
    """The parts of a batch, in the order of its messages, with each wanted message alone. Pure.

    Args:
        batch: the batch.
        wanted: the messages.
        begins: with a part for its beginning.
    """
    waiting: list[Range] = []
    if begins:
        yield Piece(batch, ())
    for at, first, end in batch.ranges:
        start = first
        for offset in sorted(offset for ssp, offset in wanted if ssp == at.ssp and first <= offset < end):
            if start < offset:
                waiting.append((at, start, offset))
            if waiting:
                yield Piece(batch, waiting)
            yield Piece(batch, [(at, offset, offset + 1)], alone=True)
            waiting, start = [], offset + 1
        if start < end:
            waiting.append((at, start, end))
    if waiting:
        yield Piece(batch, waiting)
    yield Piece(batch, None)
