"""Runs the same work for many items at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

from penstock.errors import RetryableError

logger = logging.getLogger(__name__)
A = TypeVar("A")
B = TypeVar("B")


def each(
    pool: ThreadPoolExecutor, work: Callable[[A], B], items: Sequence[A], on_error: Callable[[], None] = lambda: None
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

    futures: list[Future[B]] = [pool.submit(one, item) for item in items]
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
