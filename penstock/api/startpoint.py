"""Where a job is to begin in a partition of an input (SEP-18).

A startpoint is inclusive: the message it names is the first one that is read.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

from penstock.errors import ConfigError, IncompatibleError

IN = TypeVar("IN")
OUT = TypeVar("OUT")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Startpoint(ABC):
    """A position in a partition. Of two for the same partition the one with the later `creation_timestamp` counts."""

    creation_timestamp: int = field(default_factory=_now_ms, kw_only=True)
    """When it was made, in epoch milliseconds; now, if none is given. It expires `job.startpoint.ttl.ms` later."""

    @abstractmethod
    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        """The visitor's method for this kind of startpoint, called with `given`."""


@dataclass(frozen=True, slots=True)
class StartpointSpecific(Startpoint):
    """The message with this offset. Raises ConfigError for an empty one."""

    specific_offset: str

    def __post_init__(self) -> None:
        if not isinstance(self.specific_offset, str) or not self.specific_offset:
            raise ConfigError(f"a startpoint's offset is {self.specific_offset!r}; a text is needed, such as '1200'")

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_specific(given, self)


@dataclass(frozen=True, slots=True)
class StartpointTimestamp(Startpoint):
    """The first message with a timestamp at or after this one, in epoch milliseconds; if there is none, the next that
    will be written. Raises ConfigError if it is no whole number."""

    timestamp_offset: int

    def __post_init__(self) -> None:
        if not isinstance(self.timestamp_offset, int) or isinstance(self.timestamp_offset, bool):
            raise ConfigError(f"a startpoint's timestamp is {self.timestamp_offset!r}; epoch milliseconds are needed")

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_timestamp(given, self)


@dataclass(frozen=True, slots=True)
class StartpointOldest(Startpoint):
    """The oldest message that is there when the job starts."""

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_oldest(given, self)


@dataclass(frozen=True, slots=True)
class StartpointUpcoming(Startpoint):
    """The next message to be written after the job has started."""

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_upcoming(given, self)


class StartpointVisitor(Generic[IN, OUT]):
    """What to do with each kind of startpoint; a kind whose method is not overridden is refused.

    Raises:
        IncompatibleError: the visitor has no answer for this kind.
    """

    def visit_specific(self, given: IN, startpoint: StartpointSpecific) -> OUT:
        """For an offset."""
        self._refuse(startpoint)

    def visit_timestamp(self, given: IN, startpoint: StartpointTimestamp) -> OUT:
        """For a time."""
        self._refuse(startpoint)

    def visit_oldest(self, given: IN, startpoint: StartpointOldest) -> OUT:
        """For the oldest message."""
        self._refuse(startpoint)

    def visit_upcoming(self, given: IN, startpoint: StartpointUpcoming) -> OUT:
        """For the next message to be written."""
        self._refuse(startpoint)

    def _refuse(self, startpoint: Startpoint) -> NoReturn:
        raise IncompatibleError(f"{type(startpoint).__name__} is not supported by {type(self).__name__}")
