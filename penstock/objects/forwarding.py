"""An object store that passes every call to another one: the base of stores that count, fail, wait or watch."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.objects.store import ObjectStore


class ForwardingStore(ObjectStore):
    """Passes every call to another store. A subclass overrides the calls that it changes.

    `get`, `get_with_tag` and `pieces` read; `list`, `folders` and `sizes` list. Overriding one of them does not change
    the others.

    Example:
        >>> from penstock.objects.open import open_store
        >>> from penstock.testing.forwarding_store import ForwardingStore
        >>> class Reads(ForwardingStore):
        ...     count = 0
        ...
        ...     def get(self, key):
        ...         self.count += 1
        ...         return super().get(key)
        >>> store = Reads(open_store("memory://reads"))
        >>> store.put_if_absent("key", b"data"), store.get("key"), store.count
        (True, b'data', 1)
    """

    def __init__(self, inner: ObjectStore) -> None:
        """Wrap a store.

        Args:
            inner: the store that does the work. `close` closes it too.
        """
        self._inner = inner

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return self._inner.put_if_match(key, data, tag)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def pieces(self, key: str) -> Iterator[bytes | memoryview]:
        return self._inner.pieces(key)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        return self._inner.get_with_tag(key)

    def folders(self) -> list[str]:
        return self._inner.folders()

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        return self._inner.list(prefix, after)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._inner.sizes(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def delete_durably(self, key: str) -> None:
        self._inner.delete_durably(key)

    def modes_of_others(self, prefix: str) -> str | None:
        return self._inner.modes_of_others(prefix)

    def remove_empty_folders(self, prefix: str) -> None:
        self._inner.remove_empty_folders(prefix)

    def close(self) -> None:
        self._inner.close()
