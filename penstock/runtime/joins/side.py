"""The two sides of a join, and the messages of them that wait. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.api.joins import Join

Row: TypeAlias = tuple[int, bytes | None]
"""A message as it is kept: its event time in epoch milliseconds, and the bytes of its value."""


@dataclass(frozen=True, slots=True)
class Side:
    """Where a message of one side has its partners, and how long it waits for them."""

    is_left: bool
    letter: bytes
    """The side as a part of an entry's key."""
    back_ms: int
    """How much earlier a partner may be."""
    ahead_ms: int
    """How much later a partner may be."""
    alone: bool
    """Whether a message without a partner is emitted."""

    def last_ms(self, time_ms: int) -> int:
        """The latest time of a partner: the timestamp of a message that stays without one."""
        return time_ms + self.ahead_ms


def sides_of(join: Join) -> tuple[Side, Side]:
    """The left side and the right side."""
    before, after = join.before_ms, join.after_ms
    left = Side(is_left=True, letter=b"l", back_ms=before, ahead_ms=after, alone=join.emits_left)
    right = Side(is_left=False, letter=b"r", back_ms=after, ahead_ms=before, alone=join.emits_right)
    return left, right
