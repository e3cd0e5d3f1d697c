"""Serdes: how keys and values become bytes and back.

A serde never sees None: a message without a key or a value, and an absent state value, are kept as such.
Instances are pickled into the job, so a user's own serde must be picklable.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import orjson

T = TypeVar("T")


class Serde(ABC, Generic[T]):
    """Turns an object into bytes and back. Subclass it for a format of your own.

    `from_bytes(to_bytes(x))` equals `x`, and equal keys have equal bytes: partitioning and state look at bytes only.
    Both are called by one thread at a time, once per message or state access, so they should be quick.
    """

    @property
    def name(self) -> str:
        """What a checkpoint remembers of the serde. A store that was written with another name is refused."""
        return type(self).__qualname__.lower()

    def for_keys(self) -> Serde[T]:
        """The serde to use where this one is given for keys: one that gives equal objects equal bytes."""
        return self

    @abstractmethod
    def to_bytes(self, obj: T) -> bytes:
        """The bytes of the object. May raise anything; the message is then reported as failed."""

    @abstractmethod
    def from_bytes(self, data: bytes) -> T:
        """The object of the bytes. May raise anything; the message is then reported as not decodable."""


class Bytes(Serde[bytes]):
    """Bytes as they are."""

    def to_bytes(self, obj: bytes) -> bytes:
        if type(obj) is not bytes:
            raise TypeError(f"the bytes serde takes bytes, not {type(obj).__name__}")
        return obj

    def from_bytes(self, data: bytes) -> bytes:
        return data


# The serdes below are C functions where one does the whole work: they are called for every message, and a Python
# frame around one would cost more than the function itself. mypy compares their optional parameters.


class String(Serde[str]):
    """UTF-8 text."""

    to_bytes = staticmethod(str.encode)  # type: ignore[assignment]
    from_bytes = staticmethod(bytes.decode)  # type: ignore[assignment]


class _Packed(Serde[T]):
    _struct: struct.Struct

    def from_bytes(self, data: bytes) -> T:
        value: T = self._struct.unpack(data)[0]
        return value


class Integer(_Packed[int]):
    """A signed integer of 4 bytes, big-endian, as Samza's IntegerSerde."""

    _struct = struct.Struct(">i")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]


class Long(_Packed[int]):
    """A signed integer of 8 bytes, big-endian, as Samza's LongSerde."""

    _struct = struct.Struct(">q")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]


class Double(_Packed[float]):
    """An IEEE 754 double of 8 bytes, big-endian, as Samza's DoubleSerde."""

    _struct = struct.Struct(">d")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]


class Json(Serde[Any]):
    """JSON as compact UTF-8: dicts with string keys, lists, strings, numbers, booleans, None.

    Dates, UUIDs and dataclasses are written as text or objects and come back as such; NaN comes back as None.
    """

    def for_keys(self) -> Serde[Any]:
        return _JsonKey()

    def to_bytes(self, obj: Any) -> bytes:
        # A copy, because orjson's own bytes sit in a block of a kilobyte or more that was cut down to size: a hundred
        # thousand small ones that are kept pin hundreds of megabytes, and touching those costs more than the copy.
        return b"%b" % orjson.dumps(obj)

    from_bytes = staticmethod(orjson.loads)  # type: ignore[assignment]


class _JsonKey(Serde[Any]):
    """JSON whose objects have their fields in one order, whatever order the dict has."""

    @property
    def name(self) -> str:
        return "json"

    def to_bytes(self, obj: Any) -> bytes:
        return b"%b" % orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)

    from_bytes = staticmethod(orjson.loads)  # type: ignore[assignment]
