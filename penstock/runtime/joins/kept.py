"""The two sides of a join, and the interface of the two ways to keep their messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

from penstock.graph.event_time import Join

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


class KeptMessages(ABC):
    """The messages of both sides that later messages may join, in the operator's store.

    An attempt's reads and changes are held in memory until `save`.
    """

    @property
    @abstractmethod
    def held(self) -> int: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def save(self) -> None:
        """Store the changes, and hold nothing."""

    @abstractmethod
    def take(self, side: Side, key: bytes, row: Row) -> tuple[list[Row], Row | None]:
        """Find the partners of a message, by time and then in order of arrival, and keep the message. Also returns the
        message that is not kept as a result: an earlier one of the side, or this one itself."""

    @abstractmethod
    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        """The values of the messages of a side and key at this time. Nothing may be held."""

    @abstractmethod
    def drop(self, done: int, before: int, most: int | None) -> None:
        """Remove messages that no message at `done` or later can join. Nothing may be held.

        Args:
            before: the previous `done`. Messages from then on may be kept longer than needed.
            most: the largest number of entries to remove.
        """
