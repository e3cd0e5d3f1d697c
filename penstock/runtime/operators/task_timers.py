"""The timers of one task: scheduled by its context, fired by its node.

A timer has a key, and so has state of the current key: the key that counts, and the places of list elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.api.key_state import NO_CALL, CurrentKey, ListPlace
from penstock.api.serdes import Serde, not_bytes
from penstock.api.store import KeyValueStore
from penstock.api.task_context import MessageCollector, TaskCoordinator
from penstock.api.time.firing import LONGEST_MS, ExpiredTimer, TimeDomain, TimerFiring
from penstock.batch.batch import Batch
from penstock.errors import ConfigError
from penstock.graph.serdes import SerdePlace
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.timers import DueTimer, Timers, UpcomingTimers, key_and_name, place_of

AT_MOST = 100_000
"""Timers that fire in an attempt, unless operators downstream rely on more: a batch should not take too long."""
IN_A_ROW = 1_000
"""Timers that may schedule each other without time passing."""

_TimerId: TypeAlias = tuple[TimeDomain, bytes]


class TaskTimer(NamedTuple):
    """A timer that fires now, with its key as it is stored."""

    key: bytes | None
    time_ms: int
    name: str
    domain: TimeDomain
    firing: TimerFiring

    def __str__(self) -> str:
        name = f"timer `{self.name}`" if self.name else "a timer"
        return f"{name} of {self.domain} time {self.time_ms}"


@dataclass(slots=True)
class _StreamEnd:
    """The end of the stream, at which all timers fire. A timer that is scheduled meanwhile fires as well, but only
    once: otherwise a periodic timer would never end."""

    armed: set[_TimerId] = field(default_factory=set)
    done: set[_TimerId] = field(default_factory=set)

    def admits(self, named: _TimerId) -> bool:
        """Note that a timer is scheduled. Returns False if it must not be."""
        if named in self.done:
            return False
        self.armed.add(named)
        return True

    def fires(self, named: _TimerId) -> None:
        if named in self.armed:
            self.armed.remove(named)
            self.done.add(named)


class TaskTimers:
    """Used by the thread that calls the task."""

    def __init__(
        self,
        operator: str,
        serde: Serde[Any],
        place: SerdePlace,
        store: KeyValueStore[Any, Any],
        metrics: MetricsRegistry,
        discards: bool = False,
    ) -> None:
        """`discards`: a drain drops the timers whose time has not come."""
        self._operator = operator
        self._serde = serde
        self._where = place
        self._timers = Timers(store)
        self._discards = discards
        self._fired = metrics.new_counter(operator, "timers-fired")
        self._dropped = metrics.new_counter(operator, "timers-dropped")
        self.begin()

    def begin(self) -> None:
        self._now: tuple[int, int] | None = None
        """The time of the event-time timer that fires, and the number of timers that have scheduled each other at that
        time."""
        self._rows: dict[bytes, int] = {}
        """For timers that were scheduled by another one without time passing: how many did so in a row."""
        self._closing: _StreamEnd | None = None
        self._ended = False

    # Called by the application.

    def schedule(self, key: Any, time_ms: int, name: str, domain: TimeDomain) -> None:
        place = self._place(key, name, domain)
        if type(time_ms) is not int:
            time_ms = self._integer(time_ms)
        if not -LONGEST_MS <= time_ms <= LONGEST_MS:
            raise ConfigError(
                f"operator `{self._operator}` schedules a timer for {time_ms}, which is not a time: give epoch "
                "milliseconds"
            )
        if self._now is not None and domain == "event":
            self._check_row(place, time_ms, *self._now)
        if self._closing is not None and not self._closing.admits((domain, place)):
            self._dropped.inc()
            return
        self._timers.set(domain, place, time_ms)

    def cancel(self, key: Any, name: str, domain: TimeDomain) -> None:
        self._timers.cancel(domain, self._place(key, name, domain))

    def _place(self, key: Any, name: str, domain: str) -> bytes:
        if domain not in ("event", "processing"):
            raise ConfigError(f'domain="{domain}": expected "event" or "processing"')
        if self._ended:
            raise ConfigError(f"operator `{self._operator}`: no timer fires after `on_end` or `on_drain`")
        key_bytes = None
        if key is not None:
            try:
                key_bytes = self._serde.to_bytes(key)
            except Exception as error:
                raise self._where.unwritable("key", self._serde, key, error) from error
            if type(key_bytes) is not bytes:
                raise not_bytes(self._serde, key_bytes, f"{self._where.name}, key {key!r}")
        try:
            return place_of(key_bytes, name)
        except (AttributeError, TypeError, UnicodeEncodeError) as error:
            raise ConfigError(f"operator `{self._operator}`: a timer's name is text, not {name!r}") from error

    def _integer(self, time_ms: Any) -> int:
        try:
            return index(time_ms)
        except TypeError:
            raise ConfigError(
                f"operator `{self._operator}` schedules a timer for {time_ms!r}: give epoch milliseconds, an int"
            ) from None

    def _check_row(self, place: bytes, time_ms: int, now_ms: int, row: int) -> None:
        if time_ms > now_ms:
            self._rows.pop(place, None)
            return
        if row >= IN_A_ROW:
            raise ConfigError(
                f"operator `{self._operator}`: {IN_A_ROW} timers have scheduled each other without time passing. "
                f"on_timer was called for {now_ms}: schedule the next timer for a later time"
            )
        self._rows[place] = row + 1

    # Firings. Each timer is taken out of the store before it fires: a timer that fails does not fire again.

    def before_messages(self, batch: Batch) -> Iterator[TaskTimer]:
        """Timers of the batch time. Timers that are scheduled meanwhile wait for the next batch."""
        for due in self._timers.due("processing", batch.time_ms, live=False, at_most=AT_MOST):
            yield self._taken("processing", due)

    def after_messages(self, batch: Batch) -> Iterator[TaskTimer]:
        """Timers of event time, up to the firing watermark; all timers if the inputs end. A drain may drop those whose
        time has not come."""
        if batch.ending is not None:
            yield from self._all(batch)
            return
        firing, output = batch.firing_watermark(self._operator), batch.output_watermark(self._operator)
        for due in self._timers.due("event", firing, live=True, at_most=AT_MOST, must_ms=output):
            self._now = due.time_ms, self._rows.pop(due.place, 0)
            yield self._taken("event", due)
            self._now = None

    def between_messages(self, batch: Batch) -> UpcomingTimers:
        """The timers that `next_between` finds: those up to the firing watermark, or all if the inputs end."""
        up_to_ms = LONGEST_MS if batch.control != "none" else batch.firing_watermark(self._operator)
        return self._timers.upcoming("event", up_to_ms)

    def next_between(self, upcoming: UpcomingTimers) -> int | None:
        """The time of the next timer, if it has come before the next message. Called after each message and timer."""
        self._now = None
        return upcoming.next_ms()

    def taken_between(self, upcoming: UpcomingTimers, batch: Batch) -> TaskTimer | None:
        """The timer that `next_between` has found; None if a drain drops it."""
        due, firing = upcoming.take(), self._firing_of("event", batch)
        found = firing(due)
        if self._drops(found):
            return None
        self._now = due.time_ms, self._rows.pop(due.place, 0)
        return self._taken("event", due, found)

    def _firing_of(self, domain: TimeDomain, batch: Batch) -> Callable[[DueTimer], TimerFiring]:
        """Says of a timer of the batch why it fires."""
        if (early := batch.ending) is None:
            return lambda _: "due"
        reached = batch.late_watermark(self._operator) if domain == "event" else batch.time_ms
        return lambda due: "due" if due.time_ms <= reached else early

    def _drops(self, firing: TimerFiring) -> bool:
        if firing == "drain" and self._discards:
            self._dropped.inc()
            return True
        return False

    def _all(self, batch: Batch) -> Iterator[TaskTimer]:
        domains: tuple[TimeDomain, ...] = ("event", "processing")
        firing_of = {domain: self._firing_of(domain, batch) for domain in domains}
        self._now, self._closing = None, _StreamEnd()
        while any(self._timers.oldest(domain) is not None for domain in domains):
            for domain in domains:
                for due in self._timers.due(domain, LONGEST_MS, live=True):
                    firing = firing_of[domain](due)
                    if self._drops(firing):
                        continue
                    self._closing.fires((domain, due.place))
                    yield self._taken(domain, due, firing)
        self._closing = None

    def end(self) -> None:
        self._ended = True

    def _taken(self, domain: TimeDomain, due: DueTimer, firing: TimerFiring = "due") -> TaskTimer:
        self._fired.inc()
        key, name = key_and_name(due.place)
        return TaskTimer(key, due.time_ms, name, domain, firing)

    def expired(self, timer: TaskTimer) -> ExpiredTimer:
        """The timer as the task gets it. Raises SerdeError if the key cannot be read."""
        if timer.key is None:
            return ExpiredTimer(*timer)
        try:
            key = self._serde.from_bytes(timer.key)
        except Exception as error:
            raise self._where.unreadable("key", self._serde, timer.key, error) from error
        return ExpiredTimer(key, timer.time_ms, timer.name, timer.domain, timer.firing)


_BITS = 32
"""Bits for the number of an element in its batch: a batch appends fewer than 2**32."""


class _HasKey(Protocol):
    @property
    def key(self) -> Any: ...


S = TypeVar("S", bound=_HasKey)


Call: TypeAlias = Callable[[S, MessageCollector, TaskCoordinator], object]
"""The application's code for a message or a timer. It has to return None."""


def with_current_key(function: Call[S], current: CurrentKey) -> Call[S]:
    """Wraps a function of a message or a timer, so that its key is current while it runs."""

    def call(subject: S, collector: MessageCollector, coordinator: TaskCoordinator) -> object:
        current.key = subject.key
        try:
            return function(subject, collector, coordinator)
        finally:
            current.key = NO_CALL

    return call


class ListPlaces:
    """The places of the elements that an attempt appends to lists. They grow from batch to batch, and are the same in
    every attempt of a batch. The batch time is part of them because batches are counted from 1 again when the state of
    another job is adopted."""

    def __init__(self) -> None:
        self._time_ms = self._number = 0

    def begin(self, batch: Batch) -> None:
        self._time_ms, self._number = batch.time_ms, batch.number << _BITS

    def next(self) -> ListPlace:
        self._number += 1
        return self._time_ms, self._number
