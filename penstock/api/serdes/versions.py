"""The entries of a table with history: one for each version of a key's value, the newest first."""

from __future__ import annotations

from typing import Any, Final

from penstock.api.serdes.base import Serde

_END = b"\x00\x01"
_ZERO = b"\x00"
_ESCAPED_ZERO = b"\x00\xff"
_LAST_MS = 2**63 - 1
_TIME_BYTES = 8
_TAIL = len(_END) + _TIME_BYTES


class VersionKey(Serde[tuple[Any, int]]):
    """A key and the event time of a version: by key, and of one key the latest time first. A zero byte of the key is
    written as 00 FF, and the key ends with 00 01, as in `Tuple`."""

    ordered = True

    def __init__(self, key: Serde[Any]) -> None:
        self._key = key

    @property
    def name(self) -> str:
        return f"version-key({self._key.name})"

    def to_bytes(self, obj: tuple[Any, int]) -> bytes:
        key, time_ms = obj
        return self.prefix_to_bytes((key,)) + (_LAST_MS - time_ms).to_bytes(_TIME_BYTES, "big")

    def from_bytes(self, data: bytes) -> tuple[Any, int]:
        key = data[:-_TAIL].replace(_ESCAPED_ZERO, _ZERO)
        return self._key.from_bytes(key), _LAST_MS - int.from_bytes(data[-_TIME_BYTES:], "big")

    def prefix_to_bytes(self, prefix: tuple[Any]) -> bytes:
        return self._key.to_bytes(prefix[0]).replace(_ZERO, _ESCAPED_ZERO) + _END


EARLIEST_MS: Final = -(2**63)
"""Before every event time: the end of a range of versions."""


class _Deleted:
    """What `VersionValue` takes for a version that says that its key has no value."""


DELETED: Final = _Deleted()


class VersionValue(Serde[Any]):
    """The value of a version, or None if the key has none as of its time."""

    def __init__(self, value: Serde[Any]) -> None:
        self._value = value

    @property
    def name(self) -> str:
        return f"version({self._value.name})"

    def to_bytes(self, obj: Any) -> bytes:
        return b"\x00" if obj is DELETED else b"\x01" + self._value.to_bytes(obj)

    def from_bytes(self, data: bytes) -> Any:
        return self._value.from_bytes(data[1:]) if data[0] else None
