"""Counts the messages that a job reads again after a start or a rewind, until it is back where it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.portions import PortionRead
from penstock.batch.positions import Positions, TaskSsp


@dataclass(frozen=True, slots=True)
class RepeatedReads:
    """The messages that a batch read again."""

    messages: Mapping[TaskSsp, int] = field(default_factory=dict)
    took_ns: int | None = None
    """If the job is now back where it was: the time since the first batch that read again."""


class Replay:
    """The furthest positions of the job. One thread writes them; any thread may read `reached`."""

    def __init__(self) -> None:
        self._at: Positions = {}
        self._target: Positions = {}
        """The positions of the job before it went back; empty while nothing is read again."""
        self._began: float | None = None

    @property
    def reached(self) -> Positions:
        """The furthest next offsets of all tasks so far."""
        target = self._target
        return _furthest(target, self._at) if target else self._at

    @property
    def now_at(self) -> Positions:
        """The present positions of tasks that are not where they were before; empty while nothing is read again."""
        at, reached = self._at, self.reached
        return {} if at is reached else {key: offset for key, offset in at.items() if reached[key] != offset}

    def continues(self, reached: Positions) -> None:
        """Take over the positions that an earlier run reached. Called before the first batch."""
        self._at = reached

    def ended(
        self,
        read: Mapping[TaskSsp, PortionRead],
        latest: Mapping[SystemStreamPartition, int],
        before: Positions,
        after: Positions,
        began: float,
        ended: float,
    ) -> RepeatedReads:
        """Count a batch that has ended.

        Args:
            latest: the next offset that every input partition assigns. A stream that ends before `reached` is not the
                one that was read before.
            began: the start of the batch, on the run's monotonic clock, in seconds.
            ended: its end, on the same clock.
        """
        if self._at and before is not self._at and before != self._at:
            self._target = _furthest(self._target, self._at)
        self._at = after
        if not self._target:
            return RepeatedReads()
        target = {at: min(end, latest.get(at.ssp, 0)) for at, end in self._target.items()}
        messages = read_again(read, before, target)
        if messages and self._began is None:
            self._began = began
        if any(after.get(at, end) < end for at, end in target.items()):
            self._target = target
            return RepeatedReads(messages)
        since, self._began, self._target = self._began, None, {}
        return RepeatedReads(messages, None if since is None else round((ended - since) * 1e9))


def read_again(read: Mapping[TaskSsp, PortionRead], before: Positions, target: Positions) -> dict[TaskSsp, int]:
    """The number of a batch's messages that are before the target. If a portion goes beyond it and offsets have
    gaps, it is the offsets' share of the messages. Pure."""
    found: dict[TaskSsp, int] = {}
    for at, part in read.items():
        start = before[at]
        again = min(part.next_offset, target.get(at, start)) - start
        if again > 0:
            found[at] = round(part.messages * again / (part.next_offset - start))
    return found


def _furthest(some: Positions, others: Positions) -> dict[TaskSsp, int]:
    return {at: max(some.get(at, 0), others.get(at, 0)) for at in {**some, **others}}
