"""A base: a backup of everything a store holds, made in the background while commits go on.

A backend that comes to a store with content (it was added, or another one restored the store) cannot give a marker
before its base is complete. The base is made from a copy of the store at one boundary. Changes after that boundary are
gathered here, and follow the base as one change when it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Any, Generic, TypeVar

from penstock.base.parallel import settle
from penstock.errors import RetryableError
from penstock.state.backends.base import StoreCopy
from penstock.state.engines.engine import Changes

T = TypeVar("T")

SMALL_BASE_SECONDS = 1.0
"""The upload that begins a base waits this long for it, so that a small one is in the same commit."""


def release_if_cancelled(work: Future[Any], copy: StoreCopy) -> None:
    """Release a copy if the work that would release it never begins.

    Args:
        work: the work, which releases the copy once it runs.
        copy: the copy.
    """
    work.add_done_callback(lambda future: copy.release() if future.cancelled() else None)


class BaseBackup(Generic[T]):
    """The base of one store. Used by one thread; the work runs on the maintenance pool.

    `work(copy, cancelled)` backs up the copy and returns the point that the following deltas continue from. It should
    look at `cancelled` now and then and raise RetryableError when it is set.
    """

    def __init__(self, work: Callable[[StoreCopy, threading.Event], T], maintenance: Executor) -> None:
        self._work = work
        self._maintenance = maintenance
        self._made: Future[T] | None = None
        self._cancelled = threading.Event()
        self._since: dict[bytes, bytes | None] = {}

    @property
    def needs_copy(self) -> bool:
        """True if the base has not begun, and needs a copy to begin with."""
        return self._made is None

    def begin(self, copy: StoreCopy) -> None:
        """Start to back up the copy. Later changes are not part of it; pass them to `add`."""

        def run() -> T:
            try:
                return self._work(copy, self._cancelled)
            finally:
                copy.release()

        copy.acquire()
        try:
            self._made = self._maintenance.submit(run)
        except RuntimeError as error:
            copy.release()
            raise RetryableError("a base is not begun: the container leaves the epoch") from error
        release_if_cancelled(self._made, copy)

    def add(self, changes: Changes) -> None:
        self._since.update(changes)

    def wait(self, timeout_s: float) -> None:
        if self._made is not None:
            settle(self._made, timeout_s)

    def poll(self) -> tuple[T, Changes] | None:
        """The result of `work` and the changes since the boundary, once the base is complete; None before.

        Raises the error of the work. After a RetryableError, raised once, the base begins again with the next copy.
        """
        if self._made is None or not self._made.done():
            return None
        if self._made.cancelled():
            raise RetryableError("a base was cancelled: the container leaves the epoch")
        error = self._made.exception()
        if error is not None:
            if isinstance(error, RetryableError):
                self._made = None
                self._since.clear()
            raise error
        return self._made.result(), self._since

    def cancel(self) -> None:
        """Stop and join the work."""
        self._cancelled.set()
        if self._made is not None and not self._made.cancel():
            settle(self._made)


class Bases(Generic[T]):
    """The bases that a task's stores still need in one backend."""

    def __init__(self) -> None:
        self._bases: dict[str, BaseBackup[T]] = {}

    def need(self, store: str, base: BaseBackup[T]) -> None:
        self._bases[store] = base

    def __contains__(self, store: str) -> bool:
        return store in self._bases

    def needs_copy(self, store: str) -> bool:
        return store in self._bases and self._bases[store].needs_copy

    def add(self, changes: Mapping[str, Changes]) -> None:
        """Gather the changes of a snapshot for the stores whose base has begun."""
        for store, base in self._bases.items():
            if not base.needs_copy:
                base.add(changes.get(store, {}))

    def advance(self, copies: Mapping[str, StoreCopy]) -> Iterator[tuple[str, T, Changes]]:
        """Begin the bases that have a copy now. Yields (store, result of its work, changes since) for each base that is
        complete, and forgets it. Raises the errors of `BaseBackup.poll`."""
        for store, base in self._bases.items():
            if base.needs_copy and store in copies:
                base.begin(copies[store])
                base.wait(SMALL_BASE_SECONDS)
        for store, base in list(self._bases.items()):
            if (done := base.poll()) is not None:
                del self._bases[store]
                yield store, *done

    def cancel(self) -> None:
        for base in self._bases.values():
            base.cancel()
