"""Parallel transfers, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

from penstock.errors import RetryableError

T = TypeVar("T")

_AT_ONCE = 8


class ByteBudget:
    """A limit for the bytes in memory, shared by all who use it. A holder must not ask for more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait until `size` bytes are free, and hold them. A request larger than the budget waits for the whole
        budget."""
        size = min(size, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


def in_parallel(
    jobs: Iterable[Callable[[], T]], transfers: Executor, cancelled: threading.Event, what: str
) -> Iterator[T]:
    """Run the jobs on the pool, a few at a time, so that others have their turn. Yields their results in the caller's
    thread, in the order in which they end.

    After a failure no other job begins; the results of the running ones still come, and then the failure is raised.
    Once it is cancelled that failure is a RetryableError that says `what` was.
    """
    stopping = threading.Event()
    left = iter(jobs)
    ended: SimpleQueue[Future[T]] = SimpleQueue()
    running = 0
    failure: BaseException | None = None
    try:
        while True:
            for job in islice(left, 0 if failure is not None else _AT_ONCE - running):
                _begin(transfers, job, cancelled, stopping, what).add_done_callback(ended.put)
                running += 1
            if not running:
                break
            future = ended.get()
            running -= 1
            if future.cancelled():
                failure = failure or RetryableError(f"{what} was cancelled: the pool of its transfers was closed")
            elif (error := future.exception()) is None:
                yield future.result()
            elif failure is None and not isinstance(error, CancelledError):
                failure = error
    finally:
        stopping.set()
        for _ in range(running):
            ended.get()
    if failure is not None:
        raise failure


def _begin(
    transfers: Executor, job: Callable[[], T], cancelled: threading.Event, stopping: threading.Event, what: str
) -> Future[T]:
    try:
        return transfers.submit(_run, job, cancelled, stopping, what)
    except RuntimeError as error:
        raise RetryableError(f"{what} was cancelled: the pool of its transfers was closed") from error


def _run(job: Callable[[], T], cancelled: threading.Event, stopping: threading.Event, what: str) -> T:
    """Do a job unless another one has failed (CancelledError) or the transfer was cancelled."""
    if stopping.is_set():
        raise CancelledError
    if cancelled.is_set():
        raise RetryableError(f"{what} was cancelled")
    try:
        return job()
    except BaseException:
        stopping.set()
        raise
