"""An object store that a test watches, holds up or breaks, call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from penstock.objects.store import ObjectStore
from penstock.testing.faulty_store import ForwardingStore

Call: TypeAlias = Literal["put", "get", "delete", "list"]
Hook: TypeAlias = Callable[[Call, str], None]


def nothing(call: Call, key: str) -> None:
    """The hook that does nothing."""


class HookedStore(ForwardingStore):
    """Passes calls to `inner`, and calls `before` before each one and `after` behind it: what they raise is raised."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.put_sizes: dict[str, int] = {}
        self.read: list[str] = []
        """The keys that were read, in order."""
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.before("put", key)
        done = self._inner.put_if_absent(key, data)
        if done:
            with self._lock:
                self.put_sizes[key] = len(data)
        self.after("put", key)
        return done

    def get(self, key: str) -> bytes:
        self.before("get", key)
        with self._lock:
            self.read.append(key)
        return self._inner.get(key)

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        self.before("get", key)
        with self._lock:
            self.read.append(key)
        yield from self._inner.pieces(key)

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        self.before("list", prefix)
        return self._inner.list(prefix, after)

    def sizes(self, prefix: str) -> dict[str, int]:
        self.before("list", prefix)
        return self._inner.sizes(prefix)

    def delete(self, key: str) -> None:
        self.before("delete", key)
        self._inner.delete(key)
        self.after("delete", key)

    def delete_durably(self, key: str) -> None:
        self.before("delete", key)
        self._inner.delete_durably(key)
        self.after("delete", key)

    def replace(self, key: str, data: bytes) -> None:
        """Put other bytes in an object's place, unseen by the hooks."""
        self._inner.delete(key)
        self._inner.put_if_absent(key, data)

    def heal(self) -> None:
        """Remove the hooks and forget what was seen."""
        self.before = self.after = nothing
        self.put_sizes.clear()
        self.read.clear()


class RetriedWrites(ForwardingStore):
    """Loses the reply to each write, and writes again, as a client does: it finds its own object, and says False."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._inner.put_if_absent(key, data)
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        self._inner.put_if_match(key, data, tag)
        return self._inner.put_if_match(key, data, tag)
