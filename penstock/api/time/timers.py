"""Timers of tasks, as they are scheduled and as they fire."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.errors import ConfigError

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


TIMERS = ".timers"
"""The ending of the names of stores of timers."""


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
