"""The batches between two checkpoints, as a wing: when each was, and how far it read. A replay cuts its batches so.

A section takes a bounded number of bytes, however many batches a commit has: beyond it, two neighbours count as one
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import Section
from penstock.facts import Facts
from penstock.wing import Wing

REPLAY_WING = Wing(
    "replay",
    start="penstock.replay.start:ReplayStart",
    driver="penstock.replay.driver:BatchNotes",
)
MOST_NUMBERS = 4000
"""The most numbers of a section: some 40 KB of JSON."""


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """A batch that has ended: its time, and the next offset of each partition that it read from."""

    time_ms: int
    positions: Mapping[TaskSsp, int]
    named: bool = True
    """False: how far batches had read by then that no checkpoint names any more."""


@dataclass(frozen=True, slots=True)
class Line:
    """Checkpoints of which each follows from the one before by reading alone. Between two lines, a command has made a
    checkpoint, or a start has moved positions, cleared state, gone back to an older checkpoint or added an input."""

    epoch: int = 0
    """The epoch in which it began; 0: it is not known."""
    follows: str = ""
    """The id of the checkpoint, of another line, that the first one follows from by reading alone; empty: none. One of
    another job has that one's name and id before it (`of_other`)."""


def of_other(job: str, checkpoint: str) -> str:
    """A checkpoint of another job, for `Line.follows`."""
    return f"{job} {checkpoint}"


@dataclass(frozen=True, slots=True)
class Followed:
    """The job whose batches a run makes (`job.replay.follows`)."""

    job: str = ""
    """Its name and id; empty: none was followed."""
    line: int = 0
    """The epoch of its line."""
    made: str = ""
    """The id of its last checkpoint whose batches are all made."""


@dataclass(frozen=True, slots=True)
class FollowProgress:
    """The progress of a run that follows another job."""

    job: str
    made: str
    """The id of the last checkpoint of that job whose batches are all made; empty: none yet."""
    caught_up: bool
    """True if that was its last one, at the last look."""
    is_near: bool
    """True if that was its last one, or one with only some batches behind it. A job that is as busy as this one is
    never caught up with, as it goes on meanwhile."""
    looked: float = 0.0
    """The time of the last look, on the monotonic clock of the run, in seconds."""


@dataclass(frozen=True, slots=True)
class ReplaySection:
    """The batches since the checkpoint before."""

    places: tuple[str, ...] = ()
    """Tasks and their partitions, as `task system.stream.partition`."""
    batches: tuple[tuple[int, ...], ...] = ()
    """Each: its time, and then pairs of a place's number and the next offset there."""
    begins: tuple[int, ...] = ()
    """The time at which they begin, and the next offset of each place then."""
    line: Line = Line()
    followed: Followed = Followed()
    behind: bool = False
    """True if timers were due, and more of them than a batch fires: they fire in the next one."""


REPLAY = Section("replay", ReplaySection)


def shown_following(view: LogView) -> Facts:
    """The job whose batches this one makes, for `penstock status`."""
    followed = Followed() if view.latest is None else view.latest.section(REPLAY).followed
    if not followed.job:
        return Facts({})
    return Facts({"follows": f"{followed.job}, up to checkpoint {followed.made or 'none'}"})


def joined(batches: Sequence[ReadUpTo]) -> list[ReadUpTo]:
    """The batches, each two of them as one. Pure.

    Example:
        >>> at = TaskSsp(0, SystemStreamPartition("m", "in", 0))
        >>> [each.time_ms for each in joined([ReadUpTo(1, {at: 5}), ReadUpTo(2, {at: 7}), ReadUpTo(3, {at: 8})])]
        [2, 3]
    """
    found = []
    for number in range(0, len(batches), 2):
        pair = batches[number : number + 2]
        positions: dict[TaskSsp, int] = {}
        for each in pair:
            positions |= each.positions
        found.append(ReadUpTo(pair[-1].time_ms, positions))
    return found


def section_of(batches: Sequence[ReadUpTo], begins: ReadUpTo, line: Line) -> ReplaySection:
    """The section of a record. Pure.

    Args:
        batches: since the checkpoint before.
        begins: the time and the positions with which they begin.
        line: as in the section.
    """
    own = list(batches)
    while len(own) > 1 and numbers_of(own) > MOST_NUMBERS:
        own = joined(own)
    if not own or numbers_of(own) > MOST_NUMBERS:
        return ReplaySection(line=line)
    places = sorted({at for each in own for at in each.positions})
    number_of = {at: number for number, at in enumerate(places)}
    written = []
    for each in own:
        pairs = (number for at, offset in sorted(each.positions.items()) for number in (number_of[at], offset))
        written.append((each.time_ms, *pairs))
    first = (begins.time_ms, *(begins.positions.get(at, 0) for at in places))
    return ReplaySection(tuple(f"{at.task} {at.ssp}" for at in places), tuple(written), first, line)


def batches_of(record: CheckpointRecord) -> Iterator[ReadUpTo]:
    """The batches between the checkpoint before and this one, as far as it says them; before them, how far others had
    read that it does not name."""
    section = record.section(REPLAY)
    places = [_place(each) for each in section.places]
    upto = {TaskSsp(task, ssp): offset for task, own in record.next_offsets.items() for ssp, offset in own.items()}
    if not section.batches:
        yield ReadUpTo(record.batch_time_ms, upto, named=False)
        return
    time_ms, *offsets = section.begins
    yield ReadUpTo(time_ms, {**upto, **dict(zip(places, offsets, strict=True))}, named=False)
    for time_ms, *pairs in section.batches:
        yield ReadUpTo(time_ms, {places[at]: offset for at, offset in zip(pairs[::2], pairs[1::2], strict=True)})


def _place(text: str) -> TaskSsp:
    task, _, ssp = text.partition(" ")
    return TaskSsp(int(task), SystemStreamPartition.parse(ssp))


def numbers_of(batches: Sequence[ReadUpTo]) -> int:
    """The numbers that a section has of these batches. Pure."""
    return sum(1 + 2 * len(each.positions) for each in batches)
