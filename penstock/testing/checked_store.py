"""A store that catches values changed without a `put`."""

from __future__ import annotations

from typing import Any

from penstock.state.store import TaskStore


class UnwrittenChangeError(AssertionError):
    """A value that a store had handed out was changed in place and not put back."""


class CheckedStore(TaskStore):
    """Remembers the bytes of every value it hands out or takes, and compares them when the batch is processed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seen: dict[bytes, tuple[Any, bytes | None]] = {}

    def get(self, key: Any) -> Any:
        value = super().get(key)
        key_bytes = self._encode_key(key)
        if key_bytes not in self._seen:
            self._seen[key_bytes] = (value, None if value is None else self._encode(value))
        return value

    def put(self, key: Any, value: Any) -> None:
        super().put(key, value)
        self._seen[self._encode_key(key)] = (value, None if value is None else self._encode(value))

    def delete(self, key: Any) -> None:
        super().delete(key)
        self._seen.pop(self._encode_key(key), None)

    def check(self) -> None:
        seen, self._seen = self._seen, {}
        for key, (value, data) in seen.items():
            if value is not None and self._encode(value) != data:
                raise UnwrittenChangeError(
                    f"store `{self.name}`: the value of key {self._decode_key(key)!r} was changed after get or put "
                    "without a put; call put once it has its final value"
                )
