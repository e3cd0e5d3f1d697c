"""An object store that a test watches, holds up or breaks, call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

from penstock.metadata.object_store import ObjectStore

Call: TypeAlias = Literal["put", "get", "delete", "list"]
Hook: TypeAlias = Callable[[Call, str], None]


def nothing(call: Call, key: str) -> None:
    """The hook that does nothing."""


class HookedStore(ObjectStore):
    """Passes calls to `inner`, and calls `before` before each one and `after` behind it: what they raise is raised."""

    def __init__(self, inner: ObjectStore) -> None:
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.put_sizes: dict[str, int] = {}
        """Of what was created."""
        self.read: list[str] = []
        """The keys that were read, in order."""
        self._inner = inner
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.before("put", key)
        done = self._inner.put_if_absent(key, data)
        if done:
            with self._lock:
                self.put_sizes[key] = len(data)
        self.after("put", key)
        return done

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return self._inner.put_if_match(key, data, tag)

    def get(self, key: str) -> bytes:
        self.before("get", key)
        with self._lock:
            self.read.append(key)
        return self._inner.get(key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._inner.get_with_tag(key)

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        self.before("list", prefix)
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self.before("delete", key)
        self._inner.delete(key)
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

    def close(self) -> None:
        self._inner.close()
