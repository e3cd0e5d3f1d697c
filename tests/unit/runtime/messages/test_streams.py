"""Iterators in threads of their own: order, bounds, signs of life, errors, and that nobody stays behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.runtime.messages import incoming
from penstock.runtime.messages.incoming import CAPACITY, run_together
from tests.support.jobs.home import wait_until

DEADLINE_S = 60.0


def nothing() -> None:
    return None


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stream"]


def test_each_source_keeps_its_order() -> None:
    found = list(run_together(iter(range(50)), iter(range(100, 150)), when_idle=nothing))
    assert [n for n in found if n < 100] == list(range(50))
    assert [n for n in found if n >= 100] == list(range(100, 150))


def test_a_source_is_not_read_far_ahead() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    together = run_together(source(), when_idle=nothing)
    assert next(together) == 0
    wait_until(lambda: len(taken) == CAPACITY + 2, "the source fills what may wait", DEADLINE_S)
    assert list(together) == list(range(1, 1000))


def test_a_sign_of_life_comes_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "IDLE_SECONDS", 0.01)
    go = threading.Event()
    signs = iter([None, None, -1, None, -2])

    def source() -> Iterator[int]:
        assert go.wait(DEADLINE_S)
        yield 1

    together = run_together(source(), when_idle=lambda: next(signs))
    assert [next(together), next(together)] == [-1, -2]
    go.set()
    monkeypatch.setattr(incoming, "IDLE_SECONDS", DEADLINE_S)
    assert list(together) == [1]


def test_an_error_of_a_source_is_raised_and_the_others_are_closed() -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    def failing() -> Iterator[int]:
        yield 2
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(run_together(endless(), failing(), when_idle=nothing))
    assert closed.wait(DEADLINE_S)
    wait_until(lambda: not stream_threads(), "the threads end", DEADLINE_S)


def test_closing_ends_the_threads() -> None:
    together = run_together(iter(range(1000)), iter(range(1000)), when_idle=nothing)
    next(together)
    together.close()
    wait_until(lambda: not stream_threads(), "the threads end", DEADLINE_S)
