"""The interface of the two ways to keep the messages of a join."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.runtime.joins.side import Row, Side


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
