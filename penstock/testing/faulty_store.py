"""Object stores that fail as networks do, or whose writes are slow; and the base of stores that fail, wait or watch. A
seed makes the failures reproducible."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TypeVar

from penstock.errors import RetryableError
from penstock.objects.forwarding import ForwardingStore as ForwardingStore
from penstock.objects.store import ObjectStore

T = TypeVar("T")


class Fault(Enum):
    """The outcome of one call."""

    NONE = "it works"
    BEFORE = "it fails and nothing happened"
    LOST_REPLY = "it happens and fails nevertheless"
    RETRIED = "its reply is lost inside the client, which tries again: a put finds its own object and says False"


class FaultyStore(ForwardingStore):
    """Passes calls to another store, and makes a share of them fail.

    The seed determines the faults of one thread's calls; with several threads they also depend on how these interleave.
    `faults` counts the faults. Setting `rate` to 0 heals the store.

    Example:
        >>> from penstock.objects.open import open_store
        >>> from penstock.testing.faulty_store import FaultyStore
        >>> store = FaultyStore(open_store("memory://faulty"), seed=7, rate=1.0)
        >>> store.get("missing")
        Traceback (most recent call last):
        ...
        penstock.errors.RetryableError: injected: get missing failed
        >>> store.rate, store.faults
        (1.0, 1)
    """

    def __init__(self, inner: ObjectStore, seed: int, rate: float = 0.3, *, lag: int = 0) -> None:
        """Wrap a store.

        Args:
            inner: the store that does the work.
            seed: chooses the faults.
            rate: the share of calls that meet a fault, 0 to 1.
            lag: how many of the last keys a listing may leave out.
        """
        super().__init__(inner)
        self.rate = rate
        self.faults = 0
        self._lag = lag
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._write(f"put_if_absent {key}", lambda: self._inner.put_if_absent(key, data))

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return self._write(f"put_if_match {key}", lambda: self._inner.put_if_match(key, data, tag))

    def get(self, key: str) -> bytes:
        return self._read(f"get {key}", lambda: self._inner.get(key))

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        # Fails before the first piece, or after any other one.
        for piece in self._read(f"pieces of {key}", lambda: self._inner.pieces(key)):
            yield piece
            self._read(f"the next piece of {key}", lambda: None)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._read(f"get_with_tag {key}", lambda: self._inner.get_with_tag(key))

    def folders(self) -> list[str]:
        return self._read("folders", self._inner.folders)

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        keys = self._read(f"list {prefix}", lambda: self._inner.list(prefix, after))
        with self._lock:
            missing = self._random.randint(0, self._lag)
        return keys[: max(0, len(keys) - missing)]

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._read(f"sizes {prefix}", lambda: self._inner.sizes(prefix))

    def delete(self, key: str) -> None:
        self._write(f"delete {key}", lambda: self._inner.delete(key))

    def delete_durably(self, key: str) -> None:
        self._write(f"delete_durably {key}", lambda: self._inner.delete_durably(key))

    def remove_empty_folders(self, prefix: str) -> None:
        self._write(f"remove_empty_folders {prefix}", lambda: self._inner.remove_empty_folders(prefix))

    def _read(self, what: str, call: Callable[[], T]) -> T:
        if self._draw(Fault.NONE, Fault.BEFORE) is Fault.BEFORE:
            raise RetryableError(f"injected: {what} failed")
        return call()

    def _write(self, what: str, call: Callable[[], T]) -> T:
        fault = self._draw(*Fault)
        if fault is Fault.BEFORE:
            raise RetryableError(f"injected: {what} failed before anything happened")
        result = call()
        if fault is Fault.LOST_REPLY:
            raise RetryableError(f"injected: {what} happened, its reply was lost")
        return call() if fault is Fault.RETRIED else result

    def _draw(self, healthy: Fault, *faults: Fault) -> Fault:
        with self._lock:
            if self._random.random() >= self.rate:
                return healthy
            self.faults += 1
            return self._random.choice(faults)


class SlowStore(ForwardingStore):
    """Passes calls to another store, and delays each put. Setting `seconds` to 0 ends the delay.

    Example:
        >>> from penstock.objects.open import open_store
        >>> from penstock.testing.faulty_store import SlowStore
        >>> SlowStore(open_store("memory://slow"), seconds=0.001).put_if_absent("key", b"data")
        True
    """

    def __init__(self, inner: ObjectStore, seconds: float) -> None:
        """Wrap a store.

        Args:
            inner: the store that does the work.
            seconds: how long each put waits before it is passed on.
        """
        super().__init__(inner)
        self.seconds = seconds

    def put_if_absent(self, key: str, data: bytes) -> bool:
        time.sleep(self.seconds)
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        time.sleep(self.seconds)
        return self._inner.put_if_match(key, data, tag)
