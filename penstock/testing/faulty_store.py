"""An object store that fails as networks do, reproducibly from a seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TypeVar

from penstock.errors import RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.testing.forwarding_store import ForwardingStore

T = TypeVar("T")


class Fault(Enum):
    """What happens to one call."""

    NONE = "it works"
    BEFORE = "it fails and nothing happened"
    LOST_REPLY = "it happens and fails all the same"
    RETRIED = "its reply is lost inside the client, which tries again: a put finds its own object and says False"


class FaultyStore(ForwardingStore):
    """Passes calls to `inner`; a share `rate` of them meets a fault, and listings lag behind by up to `lag` keys.

    The faults of one thread's calls follow from the seed; with several threads they also follow from how these
    interleave. `faults` counts those injected. Setting `rate` to 0 heals the store.
    """

    def __init__(self, inner: ObjectStore, seed: int, rate: float = 0.3, *, lag: int = 0) -> None:
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
        """Fails before the first piece, or behind any other one."""
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
