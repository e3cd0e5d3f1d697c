"""An object store whose writes are slow."""

from __future__ import annotations

import time

from penstock.objects.store import ObjectStore
from penstock.testing.forwarding_store import ForwardingStore


class SlowStore(ForwardingStore):
    """Passes calls to another store, and delays each put. Setting `seconds` to 0 ends the delay.

    Example:
        >>> from penstock.objects.open import open_store
        >>> from penstock.testing.slow_store import SlowStore
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
