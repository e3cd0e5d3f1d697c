"""The oracle of the soak: its job by a plain computation over its committed input.

A `Line` is one line of checkpoints. It goes forward with the positions of the job, and says what that emits and what
the stores hold then. A start that goes back begins another line, which has lived the same up to there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.job import FIRST_MS, PARTITIONS, STEP_MS, TTL_MS, WINDOW_MS, group_of

Positions = Mapping[int, int]
"""Partition -> the next offset."""
Result = tuple[str, Any, int, int]
"""In `totals` and `audit`: key, event, count, sum. In `panes`: group, begin of the window, count, sum."""
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Event:
    """A committed message of the input."""

    offset: int
    id: int
    key: str
    n: int
    written_s: float
    """The time at which its producer made it."""

    @property
    def time_ms(self) -> int:
        return FIRST_MS + self.id * STEP_MS


@dataclass
class Input:
    """All committed messages of the input, by partition."""

    events: dict[int, list[Event]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})

    @property
    def ends(self) -> dict[int, int]:
        """Behind the last committed message of each partition."""
        return {p: own[-1].offset + 1 if own else 0 for p, own in self.events.items()}

    @property
    def count(self) -> int:
        return sum(map(len, self.events.values()))


@dataclass
class Emitted:
    """Results, with how often each is there."""

    totals: Counter[Result] = field(default_factory=Counter)
    panes: Counter[Result] = field(default_factory=Counter)

    def add(self, other: Emitted) -> None:
        self.totals.update(other.totals)
        self.panes.update(other.panes)


@dataclass
class Line:
    """The state at the positions that the line has come to, and the way there."""

    input: Input
    places: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    """Partition -> index of the next event."""
    totals: dict[str, list[int]] = field(default_factory=dict)
    last: dict[str, Event] = field(default_factory=dict)
    windows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    tops: dict[int, int] = field(default_factory=dict)
    """Partition -> highest event time."""
    way: list[tuple[Any, str, Positions]] = field(default_factory=list)
    """(id of the checkpoint behind it, step, positions)."""

    def forward(self, to: Positions, behind: Any = None) -> Emitted:
        """Process everything up to these positions, which a checkpoint has."""
        emitted = self._read(to)
        if len(self.tops) == PARTITIONS:
            self._fire(min(self.tops.values()), emitted)
        self.way.append((behind, "forward", dict(to)))
        return emitted

    def _read(self, to: Positions) -> Emitted:
        emitted = Emitted()
        for partition, end in to.items():
            own, place = self.input.events[partition], self.places[partition]
            while place < len(own) and own[place].offset < end:
                self._process(own[place], partition, emitted)
                place += 1
            self.places[partition] = place
        return emitted

    def drain(self, behind: Any = None) -> Emitted:
        """Fire all windows; event time begins anew."""
        emitted = Emitted()
        self._fire(None, emitted)
        self.tops.clear()
        self.way.append((behind, "drain", {}))
        return emitted

    def skip(self, to: Positions, behind: Any = None) -> None:
        """Go on behind messages that are never processed."""
        for partition, end in to.items():
            own = self.input.events[partition]
            while self.places[partition] < len(own) and own[self.places[partition]].offset < end:
                self.places[partition] += 1
        self.way.append((behind, "skip", dict(to)))

    def back(self, checkpoint: Any, positions: Positions, watermark: int | None) -> Line:
        """The line that begins at a checkpoint of this one.

        Args:
            checkpoint: its id.
            positions: those that it has.
            watermark: that of the windows in it. A batch fires what batches before it have made due, so windows may be
                due in a checkpoint that have not fired.
        """
        line = Line(self.input)
        for behind, step, to in self.way:
            if behind is None or behind > checkpoint:
                break
            if step == "drain":
                line.drain(behind)
            elif step == "skip":
                line.skip(to, behind)
            else:
                line._read(to)
                line.way.append((behind, step, to))
        line._read(positions)
        line.way.append((checkpoint, "forward", dict(positions)))
        if watermark is not None:
            line._fire(watermark, Emitted())
        return line

    def _process(self, event: Event, partition: int, emitted: Emitted) -> None:
        total = self.totals.setdefault(event.key, [0, 0])
        total[0] += 1
        total[1] += event.n
        emitted.totals[event.key, event.id, total[0], total[1]] += 1
        self.last[event.key] = event
        start = event.time_ms // WINDOW_MS * WINDOW_MS
        window = self.windows.setdefault((group_of(event.key), start), [0, 0])
        window[0] += 1
        window[1] += event.n
        self.tops[partition] = max(self.tops.get(partition, 0), event.time_ms)

    def _fire(self, watermark: int | None, emitted: Emitted) -> None:
        for group, start in sorted(self.windows, key=lambda window: window[1]):
            if watermark is not None and start + WINDOW_MS > watermark:
                break
            count, total = self.windows.pop((group, start))
            emitted.panes[group, start, count, total] += 1


def broken_input(read: Sequence[int], fates: Mapping[int, str]) -> list[str]:
    """Faults of the events that a reader of committed messages found, by what their producer says of each:
    `committed`, `aborted`, or `unknown`."""
    counts = Counter(read)
    twice = [event for event, count in counts.items() if count > 1]
    lost = [event for event, fate in fates.items() if fate == "committed" and event not in counts]
    wrong = [event for event in counts if fates.get(event) == "aborted"]
    return [
        *_said("input: doubled", twice),
        *_said("input: committed and not there", lost),
        *_said("input: aborted and there", wrong),
    ]


def broken_once(name: str, found: Counter[Result], expected: Counter[Result], *, complete: bool) -> list[str]:
    """Faults of an exactly-once output. With `complete`, all that is expected must be there."""
    return [
        *_said(f"{name}: not expected, or once too often", list((found - expected).elements())),
        *(_said(f"{name}: lost", list((expected - found).elements())) if complete else []),
    ]


def broken_at_least_once(
    name: str, found: Iterable[Result], expected: Iterable[Result], earlier: Iterable[Result] = ()
) -> list[str]:
    """Faults of an at-least-once output: results may come again, also those of before."""
    there, right = set(found), set(expected)
    return [
        *_said(f"{name}: never expected", sorted(there - right - set(earlier))),
        *_said(f"{name}: lost", sorted(right - there)),
    ]


def broken_state(line: Line, totals: Mapping[str, Any], seen: Mapping[str, Any], batch_time_s: float) -> list[str]:
    """Faults of the stores of a checkpoint at the positions of the line."""
    held = sorted(totals.keys() | line.totals.keys())
    wrong = [f"{k}: {totals.get(k)}, not {line.totals.get(k)}" for k in held if totals.get(k) != line.totals.get(k)]
    stale = [f"{k}: {value}" for k, value in seen.items() if k not in line.last or line.last[k].id != value]
    fresh = batch_time_s - TTL_MS / 1000 + _SLACK_S
    early = [f"{k}: event {event.id}" for k, event in line.last.items() if event.written_s > fresh and k not in seen]
    return [
        *_said("store totals", wrong),
        *_said("store seen: not the last event", stale),
        *_said("store seen: expired early", early),
    ]


_SLACK_S = 2.0
"""A batch's time may be a little before its messages were written."""


def result_of(key: bytes | None, value: bytes | None) -> Result:
    """A message of an output."""
    found = json.loads(value or b"[]")
    return ((key or b"").decode(), *found)


def _said(what: str, wrong: Sequence[Any]) -> list[str]:
    if not wrong:
        return []
    shown = ", ".join(map(str, wrong[:_SHOWN]))
    return [f"{what} ({len(wrong)}): {shown}{', ...' if len(wrong) > _SHOWN else ''}"]
