"""The work of a job between two looks at its metrics. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.metrics.snapshot import GaugeValue, Snapshot, TimerValue

MOMENTS = 240
"""Intervals that are kept: 40 minutes of a job that is looked at every ten seconds."""
PARTS = {
    "run-ns": "stages",
    "end-ns": "applying",
    "snapshot-ns": "snapshot",
    "commit-wait-ns": "waiting for the last commit",
}
"""The parts of a batch, by their timers. The rest of `batch-ns` is `other`."""
_STAGE, _STREAM = "stage.", "stream."
_LAG = "messages-behind-high-watermark"


@dataclass(frozen=True, slots=True)
class Totals:
    """The metrics of all sources added up, by group and name: counts, sums of gauges, and of timers milliseconds."""

    start: str
    """Distinguishes one start of a run from another one: counters begin at 0."""
    time_ms: int
    sums: Mapping[tuple[str, str], float]
    calls: Mapping[tuple[str, str], int]
    """The counts of timers."""
    longest_ms: Mapping[tuple[str, str], float]

    @classmethod
    def of(cls, start: str, time_ms: int, metrics: Snapshot) -> Totals:
        """Add up the metrics of a run at one moment."""
        sums: dict[tuple[str, str], float] = {}
        calls: dict[tuple[str, str], int] = {}
        longest: dict[tuple[str, str], float] = {}
        for key, value in metrics.items():
            at = key.group, key.name
            if isinstance(value, TimerValue):
                sums[at] = sums.get(at, 0.0) + value.total_ns / 1e6
                calls[at] = calls.get(at, 0) + value.count
                longest[at] = max(longest.get(at, 0.0), value.max_ns / 1e6)
            else:
                number = value.value if isinstance(value, GaugeValue) else value.count
                if math.isfinite(number):  # an application's gauge may be anything
                    sums[at] = sums.get(at, 0.0) + number
        return cls(start, time_ms, sums, calls, longest)

    def get(self, group: str, name: str) -> float:
        """The sum, or 0."""
        return self.sums.get((group, name), 0.0)

    def known(self, group: str, name: str) -> float | None:
        """The sum; None if nothing has this metric."""
        return self.sums.get((group, name))

    def mean_ms(self, group: str, name: str) -> float | None:
        """The mean of a timer; None if it has no call."""
        calls = self.calls.get((group, name), 0)
        return self.get(group, name) / calls if calls else None

    def subjects(self, kind: str) -> list[str]:
        """The subjects of the groups of a kind, such as the stores of `store.`."""
        return sorted({group.removeprefix(kind) for group, _ in self.sums if group.startswith(kind)})


@dataclass(frozen=True, slots=True)
class Interval:
    """The work of a run between two moments. Rates are per second."""

    start: str
    end_ms: int
    seconds: float
    batches: int
    batch_ms: Mapping[str, float]
    """The mean batch by part, in milliseconds; empty without a batch."""
    read: Mapping[str, float]
    """By input."""
    sent: Mapping[str, float]
    """By output."""
    processed: Mapping[int, float]
    """By stage."""
    lag: Mapping[str, float]
    """By input, at the end, in offsets."""


def between(before: Totals, after: Totals) -> Interval | None:
    """The work between two moments; None if they are of two starts, or the later one is not later."""
    seconds = (after.time_ms - before.time_ms) / 1000
    if before.start != after.start or seconds <= 0:
        return None

    def rates(kind: str, name: str) -> Iterator[tuple[str, float]]:
        for group, own in after.sums:
            if own == name and group.startswith(kind):
                yield group.removeprefix(kind), (after.get(group, name) - before.get(group, name)) / seconds

    batches = round(after.get("job", "batches") - before.get("job", "batches"))
    return Interval(
        after.start,
        after.time_ms,
        seconds,
        batches,
        _parts(before, after, batches) if batches > 0 else {},
        dict(rates(_STREAM, "messages-read")),
        dict(rates(_STREAM, "messages-sent")),
        {int(stage): rate for stage, rate in rates(_STAGE, "messages-actually-processed") if stage.isdecimal()},
        {group.removeprefix(_STREAM): value for (group, name), value in after.sums.items() if name == _LAG},
    )


def _parts(before: Totals, after: Totals, batches: int) -> dict[str, float]:
    def spent(name: str) -> float:
        return max(0.0, after.get("job", name) - before.get("job", name)) / batches

    parts = {part: spent(name) for name, part in PARTS.items()}
    return {**parts, "other": max(0.0, spent("batch-ns") - sum(parts.values()))}


@dataclass(slots=True)
class History:
    """The last intervals of a job, of however many runs."""

    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=MOMENTS))
    last: Totals | None = None
    waits_since_ms: int | None = None
    """Since when there is something to read and no batch has ended; None if there is nothing."""
    _batches: float = 0.0
    lags: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MOMENTS))
    """(epoch milliseconds, everything that was unread then) of each look at a job that runs."""

    def add(self, now: Totals) -> None:
        """Take the next moment. One that is known is left out."""
        found = None if self.last is None else between(self.last, now)
        if found is not None:
            self.intervals.append(found)
        self.last = now

    def saw(self, now_ms: int, left: float) -> None:
        """Note how much a running job has not read yet."""
        self.lags.append((now_ms, left))
        batches = 0.0 if self.last is None else self.last.get("job", "batches")
        if not left:
            self.waits_since_ms = None
        elif self.waits_since_ms is None or batches != self._batches:
            self.waits_since_ms = now_ms
        self._batches = batches

    def forget(self) -> None:
        """From now on, nothing is known of the job's start. The charts keep what was."""
        self.last = self.waits_since_ms = None
        self.lags.clear()

    @property
    def of_this_start(self) -> tuple[Interval, ...]:
        """The intervals of the start that was seen last, the newest last."""
        return tuple(each for each in self.intervals if self.last is not None and each.start == self.last.start)
