"""An object store whose writes take their time."""

from __future__ import annotations

import time

from penstock.metadata.object_store import ObjectStore


class SlowStore(ObjectStore):
    """Passes calls to `inner`; each put takes `seconds` more. Setting them to 0 makes it fast."""

    def __init__(self, inner: ObjectStore, seconds: float) -> None:
        self.seconds = seconds
        self._inner = inner

    def put_if_absent(self, key: str, data: bytes) -> bool:
        time.sleep(self.seconds)
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        time.sleep(self.seconds)
        return self._inner.put_if_match(key, data, tag)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._inner.get_with_tag(key)

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def close(self) -> None:
        self._inner.close()
