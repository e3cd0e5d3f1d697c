"""Runs iterators in threads of their own, and merges their items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

IDLE_SECONDS = 1.0
CAPACITY = 4
"""Items that may wait. Batches of packets are some megabytes each."""


def run_together(*sources: Iterator[T], when_idle: Callable[[], T | None]) -> Generator[T, None, None]:
    """Yield the items of all sources. Each source runs in its own thread.

    At most `CAPACITY` items wait to be taken; a source that has another one waits as well. Whenever nothing came for
    `IDLE_SECONDS`, `when_idle` is asked for an item; None means no item. The first error of a source is raised. Once
    this generator ends or is closed, each source is closed in its thread when it yields next.
    """
    channel: _Channel[T] = _Channel()
    for source in sources:
        threading.Thread(target=_run, args=(source, channel), name="stream", daemon=True).start()
    left = len(sources)
    try:
        while left:
            item = channel.get(IDLE_SECONDS)
            match item:
                case None:
                    sign = when_idle()
                    if sign is not None:
                        yield sign
                case _End(error):
                    if error is not None:
                        raise error
                    left -= 1
                case _Item(value):
                    yield value
    finally:
        channel.close()


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a source, with an error or without."""

    error: BaseException | None


class _Channel(Generic[T]):
    """A bounded queue whose reader may leave."""

    def __init__(self) -> None:
        self._items: deque[_Item[T] | _End] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: _Item[T] | _End) -> bool:
        """Wait for room; False if the reader has left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < CAPACITY)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self, timeout_s: float) -> _Item[T] | _End | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout_s):
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _run(source: Iterator[T], channel: _Channel[T]) -> None:
    try:
        for value in source:
            if not channel.put(_Item(value)):
                break
        if isinstance(source, Generator):
            source.close()  # releases what it holds, if it was left before its end
    except BaseException as error:
        channel.put(_End(error))
    else:
        channel.put(_End(None))
