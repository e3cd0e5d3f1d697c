"""What both ways to keep messages have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.runtime.joins.side import Row, Side


class Kept(ABC):
    """The messages of both sides that later messages may join, in the operator's store.

    What an attempt reads and changes is held until `save`.
    """

    @property
    @abstractmethod
    def held(self) -> int:
        """How many entries are held."""

    @abstractmethod
    def clear(self) -> None:
        """Forget what is held."""

    @abstractmethod
    def save(self) -> None:
        """Store what has changed, and hold nothing any longer."""

    @abstractmethod
    def take(self, side: Side, key: bytes, row: Row) -> tuple[list[Row], Row | None]:
        """Find the partners of a message, by time and then as they came, and keep it. Also returns a message that is
        not kept because of that: another one of the side, or this one itself."""

    @abstractmethod
    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        """The values of the messages of a side and key at this time. Nothing is held."""

    @abstractmethod
    def drop(self, done: int, before: int, most: int | None) -> None:
        """Remove messages that no message at `done` or later can join. Nothing is held.

        Args:
            before: what `done` was the last time. Messages from then on may be kept longer than needed.
            most: how many entries to remove at most.
        """
