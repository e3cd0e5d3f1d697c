"""Sets the size of the next batch by the time that earlier batches took. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.api.ssp import SystemStream

FIRST_MESSAGES = 100
"""The size of a run's first batch, while nobody knows how long a message takes and how large it is."""

_GROW_AT_MOST = 10
_TOO_SHORT, _TOO_LONG = 0.8, 1.25
"""Between these fractions of the target a batch has the right size: small differences are noise."""

InputOfTask = tuple[int, SystemStream]


class InputRead(NamedTuple):
    """The part of an input that a task read in a batch."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """The configured bounds: the most messages and bytes of a batch, and the aim for its duration in milliseconds; 0
    for no aim."""

    messages: int
    bytes: int
    target_ms: int


@dataclass(frozen=True, slots=True)
class BatchPace:
    """The most messages and bytes of the next batch, and the measurements for the ones after it."""

    messages: int
    bytes: int
    message_bytes: Mapping[InputOfTask, float] = field(default_factory=dict)
    """The size of a message, for every input that a task has read. A larger size counts at once, a smaller one
    gradually."""
    shortest_ms: float | None = None
    """The shortest batch so far: roughly the time of a batch that reads nearly nothing."""

    @classmethod
    def first(cls, bounds: BatchBounds) -> BatchPace:
        return cls(bounds.messages if not bounds.target_ms else min(bounds.messages, FIRST_MESSAGES), bounds.bytes)

    def size_of(self, task: int, stream: SystemStream) -> float:
        """Bytes of a message, as known of this input, or else of any; 0 if nothing is known."""
        known = self.message_bytes
        return known.get((task, stream)) or max(
            (size for (_, other), size in known.items() if other == stream), default=max(known.values(), default=0.0)
        )

    def after(
        self, bounds: BatchBounds, took_ms: float, messages: int, read: Mapping[InputOfTask, InputRead]
    ) -> BatchPace:
        known = dict(self.message_bytes)
        for key, (number, size) in read.items():
            if number:
                known[key] = max(size / number, (known.get(key, 0.0) + size / number) / 2)
        shortest = took_ms if self.shortest_ms is None else min(self.shortest_ms, took_ms)
        return replace(
            self,
            messages=next_messages(self.messages, bounds, took_ms, messages, shortest),
            message_bytes=known,
            shortest_ms=shortest,
        )


def next_messages(current: int, bounds: BatchBounds, took_ms: float, messages: int, shortest_ms: float) -> int:
    """The most messages of the next batch, after one that could read `current` and did read `messages`.

    A batch takes a fixed time, and some for each message; one without messages says nothing. The fixed time is at most
    that of the shortest batch. No batch is made so small that the fixed time is more than half of it: if the target is
    shorter than twice the shortest batch, that is the target. Growing assumes that the messages take all of the time,
    and so never goes too far. Shrinking assumes that the shortest batch had no messages, and so needs one step.
    """
    if not bounds.target_ms:
        return bounds.messages
    if not messages:
        return current
    target_ms = max(bounds.target_ms, 2 * shortest_ms)
    if took_ms > _TOO_LONG * target_ms:
        wanted = int(messages * (target_ms - shortest_ms) / (took_ms - shortest_ms))
        return max(1, min(current, wanted))
    if took_ms < _TOO_SHORT * target_ms and messages >= current:
        wanted = int(current * min(_GROW_AT_MOST, target_ms / max(took_ms, 1e-3)))
        return min(bounds.messages, max(current + 1, wanted))
    return current


def fair_shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Divide the total so that nobody gets more than wanted, and all who get less than wanted get the same (except for
    one, if it does not divide evenly)."""
    shares = [0] * len(wanted)
    left = max(0, total)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, number in enumerate(by_size):
        shares[number] = min(wanted[number], left // (len(wanted) - place))
        left -= shares[number]
    return shares
