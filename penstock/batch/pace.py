"""How much the next batch reads, by what the batches before it took. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.api.ssp import SystemStream

FIRST_MESSAGES = 100
"""What the first batch of a run reads, while nobody knows how long a message takes and how large it is."""

_GROW_AT_MOST = 10
_TOO_SHORT, _TOO_LONG = 0.8, 1.25
"""Between these parts of the target a batch has the right size: small differences are noise."""

InputOfTask = tuple[int, SystemStream]


class InputRead(NamedTuple):
    """What a task read of an input in a batch."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """What the configuration says: the most messages and bytes of a batch, and how long one should take, in
    milliseconds; 0 for no such aim."""

    messages: int
    bytes: int
    target_ms: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How many messages and bytes the next batch reads at most, and what is known for the ones after it."""

    messages: int
    bytes: int
    message_bytes: Mapping[InputOfTask, float] = field(default_factory=dict)
    """The size of a message, of every input that a task has read. A size that grew counts at once, one that shrank
    by and by."""
    shortest_ms: float | None = None
    """The shortest batch so far: about what a batch takes that reads nearly nothing."""

    @classmethod
    def first(cls, bounds: BatchBounds) -> Pace:
        """Of a run that has read nothing yet."""
        return cls(bounds.messages if not bounds.target_ms else min(bounds.messages, FIRST_MESSAGES), bounds.bytes)

    def size_of(self, task: int, stream: SystemStream) -> float:
        """Bytes of a message, by what is known of this input, or else of any; 0 if nothing is known."""
        known = self.message_bytes
        return known.get((task, stream)) or max(
            (size for (_, other), size in known.items() if other == stream), default=max(known.values(), default=0.0)
        )

    def after(self, bounds: BatchBounds, took_ms: float, messages: int, read: Mapping[InputOfTask, InputRead]) -> Pace:
        """The next pace, after a batch that had so many messages."""
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
    """How many messages the next batch may read, after one that might read `current` and did read `messages`.

    A batch takes a fixed time, and some for each message; one without messages says nothing. The fixed time is at most
    the shortest one seen, and no batch is made so small that more than half of its time is that: if the target is
    shorter than twice the shortest batch, that is the target. Growing assumes that all of the time is the messages',
    and so never goes too far. Shrinking assumes that the shortest batch had none, and so needs one step.
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
    """The total divided so that nobody gets more than wanted, and who gets less than wanted gets as much as anybody
    (but for one, where it does not divide evenly)."""
    shares = [0] * len(wanted)
    left = max(0, total)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, number in enumerate(by_size):
        shares[number] = min(wanted[number], left // (len(wanted) - place))
        left -= shares[number]
    return shares
