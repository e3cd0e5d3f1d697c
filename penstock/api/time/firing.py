"""Timers and triggers, which fire as time goes on, and watermarks: how far event time has come.

Timers of tasks are here as they are scheduled and as they fire. Samza's triggers say when a window fires before it
is complete, and again afterwards. A watermark policy says how far event time has come in an input, by the highest
event time that was read of it: windows and timers of event time fire by that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.api.serdes import Json, Serde
from penstock.base.wording import Duration, milliseconds, whole_number
from penstock.errors import ConfigError

K = TypeVar("K")
M = TypeVar("M")

TimeDomain: TypeAlias = Literal["event", "processing"]
"""The time of a timer: event time, as far as the watermark has come, or the batch time."""

TimerFiring: TypeAlias = Literal["due", "end-of-stream", "drain"]
"""The reason why a timer fires: its time has come, or before that the stream ends or the run drains."""

AtDrain: TypeAlias = Literal["fire", "discard"]
"""The effect of a drain on timers whose time has not come."""

LONGEST_MS = 2**62
"""Limit of a timer's time, in milliseconds before or after 1970."""

TIMERS = ".timers"
"""The ending of the name of a store of timers."""


def discards(timers_at_drain: object, timers: object, where: str) -> bool:
    """True if a drain discards the timers of an operator.

    Args:
        timers_at_drain: as the application declared it.
        timers: the serde of its timers.
        where: the operator, for the error.

    Raises:
        ConfigError: the declaration is invalid, or the operator has no timers.
    """
    if timers_at_drain not in ("fire", "discard"):
        raise ConfigError(f'{where}: timers_at_drain is "fire" or "discard", not {timers_at_drain!r}')
    if timers_at_drain == "discard" and timers is None:
        raise ConfigError(f'{where}: timers_at_drain="discard" is for an operator with timers: declare timers=')
    return timers_at_drain == "discard"


def timers_store(operator: str) -> str:
    return operator + TIMERS


class ExpiredTimer(NamedTuple):
    """A timer that fires, as `StreamTask.on_timer` gets it.

    `key` and `name` are those with which it was scheduled. `time_ms` is its time in epoch milliseconds, in event time
    or processing time (`domain` is `event` or `processing`). `firing` is `due` if its time has come. At the end of a
    stream and at a drain all other timers fire as well, before their time; their `firing` is `end-of-stream` or
    `drain`.

    Example:
        >>> class Remind(ps.StreamTask):
        ...     def init(self, context):
        ...         self.context = context
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.context.schedule(envelope.key, envelope.timestamp + 500, "reminder")
        ...
        ...     def on_timer(self, timer, collector, coordinator):
        ...         collector.emit(key=timer.key, value=[timer.name, timer.time_ms, timer.domain, timer.firing])
        >>> app = ps.StreamApplication("reminders")
        >>> reminders = app.input("local.orders").process(Remind, timers=ps.String())
        >>> _ = reminders.send_to(app.output("local.reminders"))
        >>> runner = TestRunner(app).input("local.orders", [("A1", 7)], timestamp=1_000).run()
        >>> [message.value for message in runner.advance_watermark(1_500).output("local.reminders")]
        [['reminder', 1500, 'event', 'due']]
        >>> runner = TestRunner(app).input("local.orders", [("A1", 7)], timestamp=1_000).run().drain()
        >>> [message.value for message in runner.output("local.reminders")]
        [['reminder', 1500, 'event', 'drain']]
    """

    key: Any
    time_ms: int
    name: str
    domain: TimeDomain
    firing: TimerFiring = "due"


def deaf_to_timers(op_id: str) -> ConfigError:
    """The error for an operator with timers whose task has no method for them."""
    return ConfigError(
        f"operator `{op_id}` is declared with timers, but its task does not define on_timer: define it, or leave out "
        "`timers`"
    )


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


NO_WATERMARK = -(2**63)
"""The watermark of an operator that has seen no event time yet: nothing is late, and nothing fires."""
END_OF_TIME = 2**63 - 1
"""The watermark of an operator whose inputs have ended: everything that waits for event time fires."""


class WatermarkPolicy(Protocol):
    """Says up to which event time a partition is complete.

    Any object with this method is a policy. The method is called in the driver, after each batch, and must be a pure
    function: the same highest event time gives the same watermark. A watermark never falls, whatever the policy says.

    Example:
        >>> class FullHours:
        ...     def watermark(self, highest_event_time_ms: int) -> int:
        ...         return highest_event_time_ms // 3_600_000 * 3_600_000
        >>> FullHours().watermark(7_300_000)
        7200000
    """

    def watermark(self, highest_event_time_ms: int) -> int:
        """The watermark of a partition. Messages with an event time below it are late.

        Args:
            highest_event_time_ms: the highest event time that ended batches have read of the partition, in epoch
                milliseconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundedOutOfOrderness:
    """The event time of a message is at most `max_delay_ms` below the highest one before it.

    Args:
        max_delay_ms: how far behind the highest event time of its partition a message may be without being late:
            milliseconds, a text such as "5s", or a timedelta.

    Raises:
        ConfigError: the delay is negative.

    Example:
        >>> BoundedOutOfOrderness(max_delay_ms=5_000).watermark(60_000)
        55000
    """

    max_delay_ms: int

    def __init__(self, max_delay_ms: Duration) -> None:
        delay = milliseconds("BoundedOutOfOrderness: max_delay_ms", max_delay_ms, least=0)
        object.__setattr__(self, "max_delay_ms", delay)

    def watermark(self, highest_event_time_ms: int) -> int:
        """`max_delay_ms` below the highest event time.

        Args:
            highest_event_time_ms: as in `WatermarkPolicy.watermark`.
        """
        return highest_event_time_ms - self.max_delay_ms


@dataclass(frozen=True, slots=True)
class Ascending:
    """The event times of each partition never fall. This is the policy of an input that has no other one.

    Example:
        >>> Ascending().watermark(60_000)
        60000
    """

    def watermark(self, highest_event_time_ms: int) -> int:
        """The highest event time: a message with that time is not late.

        Args:
            highest_event_time_ms: as in `WatermarkPolicy.watermark`.
        """
        return highest_event_time_ms


__all__ = ["END_OF_TIME", "NO_WATERMARK", "Ascending", "BoundedOutOfOrderness", "WatermarkPolicy"]


Firing: TypeAlias = Literal["early", "on-time", "late", "drain", "each"]
"""The reason why a pane was emitted. Samza's FiringType says EARLY or DEFAULT."""


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """A span of time, in epoch milliseconds: `start_ms` belongs to it, `end_ms` does not."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class WindowPane(Generic[K, M]):
    """The result of a window, as Samza's WindowPane."""

    key: K
    span: TimeWindow | None
    """The window's span of time; None for a window that counts. `window` is the same for windows of time."""
    message: M
    """The result of the messages: the fold, a mapping of aggregates, or the list of messages."""
    firing: Firing
    number: int
    """The number of earlier panes of the window and key."""

    @property
    def window(self) -> TimeWindow:
        """The window's span of time. Raises ValueError for a window that counts."""
        if self.span is None:
            raise ValueError("a window that counts messages has no span of time")
        return self.span


SPAN_COLUMNS = ("start_ms", "end_ms")
"""The columns of a pane's row that are not aggregates."""


def row_of(pane: WindowPane[Any, Any]) -> dict[str, Any]:
    """The span and the aggregates of a pane. Its key is the message's."""
    return {"start_ms": pane.window.start_ms, "end_ms": pane.window.end_ms, **pane.message}


class Panes(Serde[WindowPane[Any, Any]]):
    """Panes as JSON, which is how they travel between stages. Keys and messages come back as JSON leaves them."""

    def to_bytes(self, obj: WindowPane[Any, Any]) -> bytes:
        span = None if obj.span is None else [obj.span.start_ms, obj.span.end_ms]
        return Json().to_bytes([obj.key, span, obj.message, obj.firing, obj.number])

    def from_bytes(self, data: bytes) -> WindowPane[Any, Any]:
        key, span, message, firing, number = _pane(data)
        return WindowPane(key, None if span is None else TimeWindow(*span), message, firing, number)


_pane = msgspec.json.Decoder(tuple[Any, tuple[int, int] | None, Any, Firing, int]).decode
