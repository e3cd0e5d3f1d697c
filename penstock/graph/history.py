"""The entries of a table with history: one for each version of a key's value, the latest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from penstock.api.serdes.base import Serde
from penstock.api.serdes.tuples import Tuple

EARLIEST_MS: Final = -(2**63)
"""Before every event time: the end of a range of versions."""
_LATEST_MS = 2**63 - 1


class LatestFirst(Serde[int]):
    """Times in epoch milliseconds, as eight bytes that sort from the latest to the earliest."""

    width: ClassVar[int] = 8

    @property
    def name(self) -> str:
        return "latest-first"

    def to_bytes(self, obj: int) -> bytes:
        return (_LATEST_MS - obj).to_bytes(self.width, "big")

    def from_bytes(self, data: bytes) -> int:
        return _LATEST_MS - int.from_bytes(data, "big")


class VersionKey(Tuple):
    """A key and the event time of a version. The versions of a key follow each other, even if keys do not sort."""

    def __init__(self, key: Serde[Any]) -> None:
        self.fields = (key, LatestFirst())

    @property
    def name(self) -> str:
        return f"version-key({self.fields[0].name})"


class _Deletion:
    """The object that `VersionValue` takes for a version which says that its key has no value."""


DELETED: Final = _Deletion()


class VersionValue(Serde[Any]):
    """The value of a version, or None if the key has none as of its time."""

    def __init__(self, value: Serde[Any]) -> None:
        self.value = value

    @property
    def name(self) -> str:
        return f"version({self.value.name})"

    def continuing(self, before: str) -> Serde[Any]:
        return VersionValue(self.value.continuing(before.removeprefix("version(")[:-1]))

    def mapped(self, change: Callable[[Serde[Any]], Serde[Any]]) -> Serde[Any]:
        return VersionValue(self.value.mapped(change))

    def to_bytes(self, obj: Any) -> bytes:
        return b"\x00" if obj is DELETED else b"\x01" + self.value.to_bytes(obj)

    def from_bytes(self, data: bytes) -> Any:
        return self.value.from_bytes(data[1:]) if data[0] else None
