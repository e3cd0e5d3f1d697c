"""Work on the threads of a pool that is shut down meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from penstock.base.parallel import each
from penstock.errors import RetryableError


def test_a_pool_that_is_shut_down_drops_the_items_that_wait() -> None:
    begun, ends = threading.Event(), threading.Event()
    done: list[int] = []

    class Pool(ThreadPoolExecutor):
        """Shut down once the first item has begun and all have been submitted."""

        def submit(self, *arguments: Any) -> Future[Any]:  # type: ignore[override]
            future = super().submit(*arguments)
            if arguments[-1] == 3:
                assert begun.wait(10)
                self.shutdown(wait=False, cancel_futures=True)
                ends.set()
            return future

    def work(item: int) -> None:
        begun.set()
        ends.wait(10)
        done.append(item)

    with pytest.raises(RetryableError, match="the container leaves the epoch"):
        each(Pool(1), work, [1, 2, 3])
    assert done == [1]


def test_a_pool_that_was_shut_down_takes_no_items() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RetryableError, match="the container leaves the epoch"):
        each(pool, str, [1, 2])
