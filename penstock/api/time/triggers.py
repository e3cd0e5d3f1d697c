"""When a window fires before it is complete, and again afterwards: Samza's triggers."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.wording import Duration, milliseconds, whole_number
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trigger:
    """A condition that fires a window. Make one with `Triggers`."""


@dataclass(frozen=True, slots=True)
class CountTrigger(Trigger):
    """A number of messages have come since the window fired last."""

    messages: int


@dataclass(frozen=True, slots=True)
class SinceFirstTrigger(Trigger):
    """A time has passed since the first message after the window fired last."""

    ms: int


@dataclass(frozen=True, slots=True)
class SinceLastTrigger(Trigger):
    """A time has passed since the last message."""

    ms: int


@dataclass(frozen=True, slots=True)
class AnyTrigger(Trigger):
    """One of several conditions holds."""

    triggers: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class AllTrigger(Trigger):
    """All of several conditions hold at the same time."""

    triggers: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class RepeatTrigger(Trigger):
    """A condition that can fire a window more than once."""

    trigger: Trigger


class Triggers:
    """Makes the triggers of a window, as Samza's Triggers.

    A trigger considers what has come to one window of one key since that window last fired. It fires once, unless it is
    a `repeat`. Its times are batch time, which is wall time. Triggers are checked when a batch ends, so the messages of
    one batch cause at most one firing.

    Example:
        >>> often = ps.Triggers.repeat(ps.Triggers.any(ps.Triggers.since_first(60_000), ps.Triggers.count(100)))
        >>> hourly = ps.Windows.tumbling(3_600_000, early=often)
    """

    @staticmethod
    def count(messages: int) -> Trigger:
        """Fires once the given number of messages has come.

        Args:
            messages: how many, at least 1.

        Example:
            >>> ps.Triggers.count(100)
            CountTrigger(messages=100)
        """
        return CountTrigger(whole_number("Triggers.count: messages", messages, "messages"))

    @staticmethod
    def since_first(ms: Duration) -> Trigger:
        """Fires some time after the first message.

        Args:
            ms: how long after it.

        Example:
            >>> ps.Triggers.since_first(60_000)
            SinceFirstTrigger(ms=60000)
        """
        return SinceFirstTrigger(milliseconds("Triggers.since_first: ms", ms))

    @staticmethod
    def since_last(ms: Duration) -> Trigger:
        """Fires once no message has come for some time.

        Args:
            ms: how long.

        Example:
            >>> ps.Triggers.since_last(60_000)
            SinceLastTrigger(ms=60000)
        """
        return SinceLastTrigger(milliseconds("Triggers.since_last: ms", ms))

    @staticmethod
    def any(*triggers: Trigger) -> Trigger:
        """Fires when one of several triggers would.

        Args:
            triggers: two or more that do not repeat.

        Example:
            >>> ps.Triggers.any(ps.Triggers.count(2), ps.Triggers.since_last(5)).triggers
            (CountTrigger(messages=2), SinceLastTrigger(ms=5))
        """
        return AnyTrigger(_several("any", triggers))

    @staticmethod
    def all(*triggers: Trigger) -> Trigger:
        """Fires when several triggers would, at the same time.

        Args:
            triggers: two or more that do not repeat.

        Example:
            >>> ps.Triggers.all(ps.Triggers.count(2), ps.Triggers.since_last(5)).triggers
            (CountTrigger(messages=2), SinceLastTrigger(ms=5))
        """
        return AllTrigger(_several("all", triggers))

    @staticmethod
    def repeat(trigger: Trigger) -> Trigger:
        """Fires each time that the trigger would, not only the first time.

        Args:
            trigger: one that does not repeat.

        Example:
            >>> ps.Triggers.repeat(ps.Triggers.count(2))
            RepeatTrigger(trigger=CountTrigger(messages=2))
        """
        if isinstance(given_trigger("Triggers.repeat", trigger), RepeatTrigger):
            raise ConfigError("Triggers.repeat takes a trigger that does not repeat already")
        return RepeatTrigger(trigger)


def given_trigger(what: str, given: object) -> Trigger:
    """Return the given object, if it is a trigger. Raises ConfigError, naming `what`, if it is not."""
    if not isinstance(given, Trigger) or type(given) is Trigger:
        raise ConfigError(f"{what} takes a trigger, such as ps.Triggers.count(100), not {given!r}")
    return given


def _several(name: str, triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    for each in triggers:
        given_trigger(f"Triggers.{name}", each)
    if len(triggers) < 2 or any(isinstance(each, RepeatTrigger) for each in triggers):
        raise ConfigError(f"Triggers.{name} takes two triggers or more; repeat goes around it: repeat({name}(...))")
    return triggers
