"""Work on the threads of a pool that is shut down meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import RetryableError
from penstock.parallel import each


def test_a_pool_that_is_shut_down_drops_the_items_that_wait() -> None:
    pool, begun, ends = ThreadPoolExecutor(1), threading.Event(), threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        begun.set()
        ends.wait(10)
        done.append(item)

    def shut_down() -> None:
        begun.wait(10)
        pool.shutdown(wait=False, cancel_futures=True)
        ends.set()

    closer = threading.Thread(target=shut_down)
    closer.start()
    with pytest.raises(RetryableError, match="the container leaves the epoch"):
        each(pool, work, [1, 2, 3])
    closer.join()
    assert done == [1]
