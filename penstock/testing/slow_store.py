"""An object store whose writes take their time."""

from __future__ import annotations

import time

from penstock.metadata.object_store import ObjectStore
from penstock.testing.forwarding_store import ForwardingStore


class SlowStore(ForwardingStore):
    """Passes calls to `inner`; each put takes `seconds` more. Setting them to 0 makes it fast."""

    def __init__(self, inner: ObjectStore, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds

    def put_if_absent(self, key: str, data: bytes) -> bool:
        time.sleep(self.seconds)
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        time.sleep(self.seconds)
        return self._inner.put_if_match(key, data, tag)
