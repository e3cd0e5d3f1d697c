"""The two sides of a join. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.graph.joins import Join

Row: TypeAlias = tuple[int, bytes | None]
"""A message as it is kept: event time in epoch milliseconds, and the bytes of the value."""


@dataclass(frozen=True, slots=True)
class Side:
    """The bounds within which a message of one side finds its partners."""

    is_left: bool
    letter: bytes
    back_ms: int
    """The greatest distance of an earlier partner."""
    ahead_ms: int
    """The greatest distance of a later partner."""
    alone: bool
    """A message without a partner is emitted."""

    def last_ms(self, time_ms: int) -> int:
        """The latest time of a partner, which is the timestamp of a message that stays without one."""
        return time_ms + self.ahead_ms


def sides_of(join: Join) -> tuple[Side, Side]:
    before, after = join.before_ms, join.after_ms
    left = Side(is_left=True, letter=b"l", back_ms=before, ahead_ms=after, alone=join.emits_left)
    right = Side(is_left=False, letter=b"r", back_ms=after, ahead_ms=before, alone=join.emits_right)
    return left, right
