"""Work on the threads of pools: all items of a list, as many jobs as come, one after another."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from penstock.errors import RetryableError

logger = logging.getLogger(__name__)
A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

_AT_ONCE = 8


def each(
    pool: Executor, work: Callable[[A], B], items: Sequence[A], on_error: Callable[[], None] = lambda: None
) -> list[B]:
    """Do the work for every item on the pool. Waits for all, then raises the first error, if any; permanent errors come
    before a RetryableError."""
    errors: list[BaseException] = []

    def one(item: A) -> B:
        try:
            return work(item)
        except BaseException as error:
            errors.append(error)  # before the others are cancelled, so that the cause comes first
            on_error()
            raise

    futures: list[Future[B]] = []
    try:
        futures.extend(pool.submit(one, item) for item in items)
    except RuntimeError as refused:  # the pool was shut down
        errors.append(RetryableError(f"the container leaves the epoch: {refused}"))
    for future in futures:
        try:
            future.exception()  # unlike `wait`, it notices a future that the pool's shutdown has cancelled
        except CancelledError:
            errors.append(RetryableError("the container leaves the epoch"))
    if errors:
        errors.sort(key=lambda error: isinstance(error, RetryableError))
        for error in errors[1:]:
            logger.error("also failed: %s", error)
        raise errors[0]
    return [future.result() for future in futures]


def in_parallel(jobs: Iterable[Callable[[], T]], pool: Executor, cancelled: threading.Event, what: str) -> Iterator[T]:
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
                _begin(pool, job, cancelled, stopping, what).add_done_callback(ended.put)
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
    pool: Executor, job: Callable[[], T], cancelled: threading.Event, stopping: threading.Event, what: str
) -> Future[T]:
    try:
        return pool.submit(_run, job, cancelled, stopping, what)
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


class InTurn:
    """Runs tasks one after another, on a shared pool. No thread waits for its turn."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._busy = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """As `Executor.submit`. If the pool was shut down, the future is cancelled."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                self._next()

        with self._lock:
            self._waiting.append((future, run))
            idle, self._busy = not self._busy, True
        if idle:
            self._next()
        return future

    def _next(self) -> None:
        with self._lock:
            if not self._waiting:
                self._busy = False
                return
            future, run = self._waiting.popleft()
        try:
            self._pool.submit(run)
        except RuntimeError:  # the pool was shut down: nothing that waits will begin
            future.cancel()
            self._next()


def settle(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait for the end of a future, however it ends. False if that takes longer."""
    try:
        future.exception(timeout_s)
    except TimeoutError:
        return False
    except CancelledError:
        pass
    return True


def joined(futures: Sequence[Future[None]]) -> Future[None]:
    """Done once all are done, at once if there are none; with the error of one that failed or was cancelled.

    Example:
        >>> joined([]).done()
        True
    """
    found: Future[None] = Future()
    lock, left = threading.Lock(), set(futures)

    def note(done: Future[None]) -> None:
        with lock:
            left.discard(done)
            if left:
                return
        error = next((each.exception() for each in futures if not each.cancelled() and each.exception()), None)
        if error is not None:
            found.set_exception(error)
        elif any(each.cancelled() for each in futures):
            found.cancel()
        else:
            found.set_result(None)

    for each in futures:
        each.add_done_callback(note)
    if not futures:
        found.set_result(None)
    return found
