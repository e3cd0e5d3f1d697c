"""Steps of the local system that are taken for many files."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import CorruptError, RetryableError
from penstock.system.local.sqlite import in_parallel


@pytest.mark.parametrize("slow", [False, True])
def test_every_step_is_taken_whatever_fails_and_the_error_that_stays_is_raised(slow: bool) -> None:
    taken: list[int] = []
    pause = threading.Event()

    def step(item: int) -> None:
        taken.append(item)
        if slow:
            pause.wait(0.01)
        if item == 1:
            raise RetryableError("the disk is full")
        if item == 5:
            raise CorruptError("damaged")

    with pytest.raises(CorruptError, match="damaged"):
        in_parallel(step, range(20))
    assert sorted(taken) == list(range(20))


def test_slow_steps_are_taken_at_once() -> None:
    together = threading.Barrier(4)

    def step(item: int) -> None:
        if item == 0:
            threading.Event().wait(0.01)  # slow, by itself
        else:
            together.wait(30)

    in_parallel(step, range(5))  # one after the other, the barrier would break


def test_quick_steps_are_taken_in_order_by_the_caller() -> None:
    threads: list[threading.Thread] = []
    in_parallel(lambda _: threads.append(threading.current_thread()), range(3))
    assert threads[0] is threading.current_thread()
    in_parallel(lambda _: threads.append(threading.current_thread()), [])
    assert len(threads) == 3
