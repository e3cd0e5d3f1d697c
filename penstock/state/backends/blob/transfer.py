"""Many transfers at once, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

from penstock.errors import RetryableError

T = TypeVar("T")

_THREADS = 8


class ByteBudget:
    """How many bytes may be in memory at once, for all who share it. Whoever holds some asks for no more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait until `size` bytes are free, and hold them. More than there are is all of them."""
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


def in_parallel(jobs: Sequence[Callable[[], T]], cancelled: threading.Event, what: str) -> Iterator[T]:
    """Run the jobs on a few threads; yields, in the caller's thread, what they return, as it comes.

    After a failure no other job begins; what the running ones return still comes, and then the failure is raised.
    Once it is cancelled that failure is a RetryableError that says `what` was.
    """
    if not jobs:
        return

    stopping = threading.Event()
    pool = ThreadPoolExecutor(min(_THREADS, len(jobs)), thread_name_prefix="blob")
    try:
        futures = [pool.submit(_run, job, cancelled, stopping, what) for job in jobs]
        failure: BaseException | None = None
        for future in as_completed(futures):
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                yield future.result()
            elif failure is None and not isinstance(error, CancelledError):
                failure = error
                for other in futures:
                    other.cancel()
    finally:
        pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


def _run(job: Callable[[], T], cancelled: threading.Event, stopping: threading.Event, what: str) -> T:
    """Do a job unless another one has failed (CancelledError) or it was cancelled."""
    if stopping.is_set():
        raise CancelledError
    if cancelled.is_set():
        raise RetryableError(f"{what} was cancelled")
    try:
        return job()
    except BaseException:
        stopping.set()
        raise
