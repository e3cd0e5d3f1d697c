"""Trying again, on a clock that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.base.retry import Retry, retry, retry_contended
from penstock.errors import ConfigError, ContainerLostError, RetryableError
from penstock.testing import SettableClock


class Work:
    """Fails so many times, then returns how often it was done."""

    def __init__(self, failures: int, error: Exception | None = None, takes: Callable[[], None] = lambda: None) -> None:
        self.failures, self.error, self.takes = failures, error or RetryableError("not yet"), takes
        self.done = 0

    def __call__(self) -> int:
        self.done += 1
        self.takes()
        if self.done <= self.failures:
            raise self.error
        return self.done


def test_pauses_grow_up_to_the_longest_one() -> None:
    clock, told = SettableClock(), list[str]()
    policy = Retry(pause_s=1.0, longest_pause_s=5.0)
    assert retry(Work(5), policy, clock=clock, on_failure=lambda error: told.append(str(error))) == 6
    assert clock.waited == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert told == ["not yet"] * 5


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_the_last_try_raises_and_nothing_is_waited_for_after_it(tries: int) -> None:
    clock, work = SettableClock(), Work(99)
    with pytest.raises(RetryableError) as raised:
        retry(work, Retry(pause_s=1.0, growth=1.0, tries=tries), clock=clock)
    assert raised.value is work.error
    assert work.done == tries
    assert clock.waited == [1.0] * (tries - 1)


def test_no_try_begins_after_the_deadline() -> None:
    clock = SettableClock()
    work = Work(99, takes=lambda: clock.advance(2))
    with pytest.raises(RetryableError):
        retry(work, Retry(pause_s=1.0, growth=1.0, within_s=9.0), clock=clock)
    assert work.done == 4  # they began at 0, 3, 6 and 9
    assert clock.monotonic() == 11


@pytest.mark.parametrize("error", [ConfigError("wrong"), ContainerLostError("gone"), ValueError("no")])
def test_what_does_not_pass_is_raised_at_once(error: Exception) -> None:
    clock, work = SettableClock(), Work(1, error)
    with pytest.raises(type(error)):
        retry(work, Retry(pause_s=1.0), clock=clock)
    assert (work.done, clock.waited) == (1, [])


def test_the_caller_says_what_passes() -> None:
    assert retry(Work(2, ValueError()), Retry(0.0), passes=lambda error: isinstance(error, ValueError)) == 3


def test_an_event_that_is_set_ends_it_with_the_last_error() -> None:
    interrupt = threading.Event()
    work = Work(99, takes=lambda: interrupt.set() if work.done == 3 else None)
    with pytest.raises(RetryableError, match="not yet"):
        retry(work, Retry(pause_s=1.0), interrupt=interrupt, clock=SettableClock())
    assert work.done == 3


def test_an_event_ends_a_pause() -> None:
    """On the machine's own clock: without the event this would take an hour."""
    interrupt = threading.Event()
    work = Work(99)
    with pytest.raises(RetryableError):
        retry(
            work,
            Retry(pause_s=3600.0),
            interrupt=interrupt,
            on_failure=lambda _: threading.Timer(0.05, interrupt.set).start(),
        )
    assert work.done == 1


def test_who_lost_tries_again_and_every_other_error_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.base.retry._CONTENDED", Retry(pause_s=0.001, tries=3))
    assert retry_contended(Work(2, BlockingIOError()), BlockingIOError) == 3
    for work, done in ((Work(9, BlockingIOError()), 3), (Work(9, RetryableError("away")), 1)):
        with pytest.raises(type(work.error)):
            retry_contended(work, BlockingIOError)
        assert work.done == done
