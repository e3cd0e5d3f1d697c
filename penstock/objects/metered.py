"""An object store that counts the bytes that pass through it."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.metrics.registry import MetricsRegistry
from penstock.objects.forwarding import ForwardingStore
from penstock.objects.store import ObjectStore


class MeteredObjectStore(ForwardingStore):
    """Another object store that counts the bytes of whole objects written and read."""

    def __init__(self, inner: ObjectStore, metrics: MetricsRegistry, group: str) -> None:
        """Counts `bytes-uploaded` and `bytes-downloaded` of the group. An object that existed already counts as
        written, because its bytes were sent."""
        super().__init__(inner)
        self._written = metrics.new_counter(group, "bytes-uploaded")
        self._read = metrics.new_counter(group, "bytes-downloaded")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        put = self._inner.put_if_absent(key, data)
        self._written.inc(len(data))
        return put

    def get(self, key: str) -> bytes:
        data = self._inner.get(key)
        self._read.inc(len(data))
        return data

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        for piece in self._inner.pieces(key):
            self._read.inc(len(piece))
            yield piece

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        data, tag = self._inner.get_with_tag(key)
        self._read.inc(len(data))
        return data, tag

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        put = self._inner.put_if_match(key, data, tag)
        self._written.inc(len(data))
        return put

    def close(self) -> None:
        """Does nothing: the inner store belongs to its opener."""
