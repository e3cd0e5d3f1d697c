"""Clocks, and further tries after failures.

A `Clock` is the time that decisions depend on. It is passed in, so that a test moves it
(`penstock.testing.SettableClock`). A failure that may pass is tried again in one way, with waits that grow.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from penstock.errors import ContainerLostError, RetryableError


class Clock(Protocol):
    """The source of time for decisions."""

    def now_ms(self) -> int:
        """The wall clock, in epoch milliseconds. It may go back."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. They never fall."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set, at most that long. Returns True if it is set."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


SYSTEM_CLOCK = SystemClock()


T = TypeVar("T")
_INTERRUPT: ContextVar[threading.Event | None] = ContextVar("penstock-interrupt", default=None)


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of tries, their time limit, and the pauses between them."""

    pause_s: float
    growth: float = 2.0
    longest_pause_s: float = 10.0
    tries: int | None = None
    """The most tries; None: no limit."""
    within_s: float | None = None
    """No try begins later than this after the first one began; None: no limit."""


_CONTENDED = Retry(pause_s=0.05, growth=1.5, longest_pause_s=1.0, within_s=60.0)
"""The first pause is the longest one of those that are drawn."""


def may_pass(error: BaseException) -> bool:
    """True if the same call may succeed later. A lost container does not come back: its tasks are restored."""
    return isinstance(error, RetryableError) and not isinstance(error, ContainerLostError)


@contextmanager
def interruptible(event: threading.Event) -> Iterator[None]:
    """End each wait of this thread in the block with RetryableError soon after the event is set, if it waits with
    `retry` or calls `check_interrupt` now and then. An inner block replaces an outer one.

    Example:
        >>> stopping = threading.Event()
        >>> stopping.set()
        >>> with interruptible(stopping):
        ...     check_interrupt("the topic could not be read")
        Traceback (most recent call last):
        ...
        penstock.errors.RetryableError: the topic could not be read: nothing waits for it any more
    """
    before = _INTERRUPT.set(event)
    try:
        yield
    finally:
        _INTERRUPT.reset(before)


def check_interrupt(doing: str) -> None:
    """Raise RetryableError if this thread's `interruptible` is set. `doing` begins the error: the work that fails."""
    event = _INTERRUPT.get()
    if event is not None and event.is_set():
        raise RetryableError(f"{doing}: nothing waits for it any more")


def retry(
    work: Callable[[], T],
    policy: Retry,
    *,
    passes: Callable[[Exception], bool] = may_pass,
    interrupt: threading.Event | None = None,
    on_failure: Callable[[Exception], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Do the work, again and again while it fails with an error that may pass.

    Args:
        work: must have the same effect however often it is done.
        policy: the number of tries, their time limit and the pauses.
        passes: returns True if an error may pass. Others are raised at once.
        interrupt: once it is set, no other try begins, and a pause ends. Without it, that of `interruptible`.
        on_failure: called with each error before the pause that follows it.
        clock: measures and waits.

    Raises:
        Exception: the last error of `work`, as it was: it does not pass, the policy allows no more tries, or
            `interrupt` is set.

    Example:
        >>> answers = iter([RetryableError("not yet"), 7])
        >>> def ask() -> int:
        ...     answer = next(answers)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> retry(ask, Retry(pause_s=0.001, tries=3))
        7
    """
    interrupt = interrupt or _INTERRUPT.get() or threading.Event()
    began = clock.monotonic()
    pause_s = policy.pause_s
    tries = 1
    while True:
        try:
            return work()
        except Exception as error:
            if not passes(error) or tries == policy.tries or interrupt.is_set():
                raise
            if policy.within_s is not None and clock.monotonic() + pause_s > began + policy.within_s:
                raise
            on_failure(error)
            if clock.wait(interrupt, pause_s):
                raise
        tries += 1
        pause_s = min(pause_s * policy.growth, policy.longest_pause_s)


def retry_contended(work: Callable[[], T], lost: type[Exception]) -> T:
    """Do the work again while others come first, for a minute at most. The pauses are random, so that those who met do
    not meet again.

    Args:
        work: has no effect if it raises `lost`.
        lost: the error for work that others came before. All other errors are raised at once.

    Example:
        >>> answers = iter([BlockingIOError("others came first"), 7])
        >>> def commit() -> int:
        ...     answer = next(answers)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> retry_contended(commit, BlockingIOError)
        7
    """
    first_s = _CONTENDED.pause_s * random.uniform(0.1, 1.0)  # noqa: S311 - not a secret
    return retry(work, replace(_CONTENDED, pause_s=first_s), passes=lambda error: isinstance(error, lost))
