"""Requests to a job, in Samza's terms: where it begins to read, and how a run ends.

A startpoint (SEP-18) says where the job begins in a partition of an input. It is inclusive: the message that it
names is the first one that is read. A `DrainNotification` asks a run to drain.
"""

from __future__ import annotations

import uuid as uuids
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NoReturn, TypeVar

from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import ConfigError, IncompatibleError

IN = TypeVar("IN")
OUT = TypeVar("OUT")


def _check_ms(what: str, given: object) -> None:
    if type(given) is not int or not -(1 << 63) <= given < 1 << 63:
        raise ConfigError(f"a startpoint's {what} is {given!r}; it must be epoch milliseconds, an integer of 64 bits")


def _is_unicode(text: str) -> bool:
    """True if the text can be written: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Startpoint(ABC):
    """A position in a partition of an input (SEP-18). The four kinds are its subclasses; there are no others.

    A startpoint is inclusive: the message that it names is the first one that is read. Of two startpoints for one
    partition, the one with the later `creation_timestamp` counts. `penstock.admin.set_startpoint` writes one for a job.

    Example:
        >>> startpoint = ps.StartpointSpecific("1200", creation_timestamp=1_700_000_000_000)
        >>> startpoint.specific_offset, startpoint.creation_timestamp
        ('1200', 1700000000000)
    """

    creation_timestamp: int = field(default_factory=SYSTEM_CLOCK.now_ms, kw_only=True)
    """The time of its creation, in epoch milliseconds; by default now. It expires `job.startpoint.ttl.ms` later."""

    def __post_init__(self) -> None:
        _check_ms("creation time", self.creation_timestamp)

    @abstractmethod
    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        """Call the visitor's method for this kind of startpoint, and return its result.

        Args:
            given: passed to the method as its first argument.
            visitor: has a method for each kind of startpoint.
        """


@dataclass(frozen=True, slots=True)
class StartpointSpecific(Startpoint):
    """The message with the offset `specific_offset`, a text.

    Raises:
        ConfigError: the offset is empty, or not a text.

    Example:
        >>> ps.StartpointSpecific("1200").specific_offset
        '1200'
    """

    specific_offset: str

    def __post_init__(self) -> None:
        Startpoint.__post_init__(self)
        offset = self.specific_offset
        if not isinstance(offset, str) or not offset or not _is_unicode(offset):
            raise ConfigError(f"a startpoint's offset is {offset!r}; it must be a string, such as '1200'")

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_specific(given, self)


@dataclass(frozen=True, slots=True)
class StartpointTimestamp(Startpoint):
    """The first message with the timestamp `timestamp_offset` or a later one, in epoch milliseconds.

    Without such a message it is the next message to be written.

    Raises:
        ConfigError: the timestamp is not an integer of 64 bits.

    Example:
        >>> ps.StartpointTimestamp(1_700_000_000_000).timestamp_offset
        1700000000000
    """

    timestamp_offset: int

    def __post_init__(self) -> None:
        Startpoint.__post_init__(self)
        _check_ms("timestamp", self.timestamp_offset)

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_timestamp(given, self)


@dataclass(frozen=True, slots=True)
class StartpointOldest(Startpoint):
    """The oldest message that the partition holds when the job starts.

    Example:
        >>> isinstance(ps.StartpointOldest(), ps.Startpoint)
        True
    """

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_oldest(given, self)


@dataclass(frozen=True, slots=True)
class StartpointUpcoming(Startpoint):
    """The next message written after the job has started: the job skips all existing ones.

    Example:
        >>> isinstance(ps.StartpointUpcoming(), ps.Startpoint)
        True
    """

    def apply(self, given: IN, visitor: StartpointVisitor[IN, OUT]) -> OUT:
        return visitor.visit_upcoming(given, self)


class StartpointVisitor(Generic[IN, OUT]):
    """A method for each kind of startpoint, for a system that resolves startpoints itself (SEP-18's StartpointVisitor).

    Each method gets the argument of `Startpoint.apply`, and the startpoint. One that is not overridden raises
    IncompatibleError.

    Example:
        >>> class Words(ps.StartpointVisitor[str, str]):
        ...     def visit_specific(self, given, startpoint):
        ...         return f"offset {startpoint.specific_offset} of {given}"
        >>> ps.StartpointSpecific("1200").apply("local.flights", Words())
        'offset 1200 of local.flights'
        >>> ps.StartpointOldest().apply("local.flights", Words())
        Traceback (most recent call last):
        ...
        penstock.errors.IncompatibleError: StartpointOldest is not supported by Words
    """

    def visit_specific(self, given: IN, startpoint: StartpointSpecific) -> OUT:
        """Answer for an offset.

        Args:
            given: the argument of `apply`.
            startpoint: the startpoint.
        """
        self._refuse(startpoint)

    def visit_timestamp(self, given: IN, startpoint: StartpointTimestamp) -> OUT:
        """Answer for a timestamp.

        Args:
            given: the argument of `apply`.
            startpoint: the startpoint.
        """
        self._refuse(startpoint)

    def visit_oldest(self, given: IN, startpoint: StartpointOldest) -> OUT:
        """Answer for the oldest message.

        Args:
            given: the argument of `apply`.
            startpoint: the startpoint.
        """
        self._refuse(startpoint)

    def visit_upcoming(self, given: IN, startpoint: StartpointUpcoming) -> OUT:
        """Answer for the next message to be written.

        Args:
            given: the argument of `apply`.
            startpoint: the startpoint.
        """
        self._refuse(startpoint)

    def _refuse(self, startpoint: Startpoint) -> NoReturn:
        raise IncompatibleError(f"{type(startpoint).__name__} is not supported by {type(self).__name__}")


KINDS = (StartpointSpecific, StartpointTimestamp, StartpointOldest, StartpointUpcoming)


NEXT_RUN = "*"
"""The next run, in place of a run id. No run has this id."""


class DrainMode(Enum):
    """The way in which a run drains.

    Example:
        >>> [mode.value for mode in ps.DrainMode]
        ['DEFAULT', 'OPERATORS']
    """

    DEFAULT = "DEFAULT"
    """Everything in flight and everything that waits for a time is processed, then the run ends."""
    OPERATORS = "OPERATORS"
    """As DEFAULT for the operators that the request names. All others keep what waits in them, and their state. Samza
    has no such mode, and obeys no request for it."""


@dataclass(frozen=True, slots=True)
class DrainNotification:
    """A request to drain one run of a job.

    Args:
        uuid: the name of the request.
        run_id: the run that is to drain; no other run ever obeys the request. `*` is the run that comes next.
        drain_mode: how.
        operators: in the mode OPERATORS, the ids of the operators that drain; otherwise empty.

    Raises:
        ConfigError: a field is missing or has another type, or the operators do not fit the mode.

    Example:
        >>> import uuid
        >>> ps.DrainNotification.create(uuid.UUID(int=7), "3f2a").drain_mode.name
        'DEFAULT'
    """

    uuid: uuids.UUID
    run_id: str
    drain_mode: DrainMode
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, uuids.UUID):
            raise ConfigError(f"a drain notification needs a UUID, not {self.uuid!r}")
        if not isinstance(self.run_id, str) or not self.run_id:
            raise ConfigError(f"a drain notification needs the id of a run, not {self.run_id!r}")
        if not isinstance(self.drain_mode, DrainMode):
            raise ConfigError(f"a drain notification needs a DrainMode, not {self.drain_mode!r}")
        if not all(isinstance(each, str) and each for each in self.operators):
            raise ConfigError(f"a drain notification names operators by their ids, not {self.operators!r}")
        if bool(self.operators) != (self.drain_mode is DrainMode.OPERATORS):
            raise ConfigError(
                f"a drain notification in the mode {self.drain_mode.value} has the operators {self.operators!r}; only "
                "the mode OPERATORS has some, and needs them"
            )

    @classmethod
    def create(cls, uuid: uuids.UUID, run_id: str) -> DrainNotification:
        """A notification in the mode DEFAULT.

        Args:
            uuid: the name of the request.
            run_id: the run that is to drain.

        Raises:
            ConfigError: an argument is missing or has another type.
        """
        return cls(uuid, run_id, DrainMode.DEFAULT)
