"""Batches of what comes slowly, such as from a pipe: a batch waits for no more than a second for the rest of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
LINGER_S = 1.0
"""The time after which a batch is complete, since its first element came."""
_LOOK_S = 0.1


class _Flow(Generic[T]):
    """Reads an iterable on a separate thread, which may block for as long as it likes. Its end, or its error, comes
    behind its last element."""

    def __init__(self, source: Iterable[T], ahead: int) -> None:
        self.waiting: Queue[tuple[T] | BaseException | None] = Queue(ahead)
        self._source = source
        self._left = threading.Event()
        threading.Thread(target=self._read, name="penstock-publish-reader", daemon=True).start()

    def leave(self) -> None:
        """Nobody takes anything more: the thread ends with the element that it waits for."""
        self._left.set()

    def _read(self) -> None:
        try:
            for element in self._source:
                if not self._put((element,)):
                    return
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: tuple[T] | BaseException | None) -> bool:
        while not self._left.is_set():
            try:
                self.waiting.put(item, timeout=_LOOK_S)
            except Full:
                continue
            return True
        return False


def batches_in_time(source: Iterable[T], size: int) -> Iterator[list[T]]:
    """Batches of at most `size`, each within a second after its first element. An error of the source is raised in
    place of the batch that it would be in."""
    flow = _Flow(source, 2 * size)
    batch: list[T] = []
    deadline = 0.0
    try:
        while True:
            try:
                item = flow.waiting.get(timeout=max(0.0, deadline - time.monotonic()) if batch else None)
            except Empty:
                yield batch
                batch = []
                continue
            if isinstance(item, BaseException):
                raise item
            if item is None:
                if batch:
                    yield batch
                return
            if not batch:
                deadline = time.monotonic() + LINGER_S
            batch.append(item[0])
            if len(batch) == size:
                yield batch
                batch = []
    finally:
        flow.leave()
