"""Serdes of numbers.

Messages and values have the big-endian forms that Samza and Kafka use. As bytes these do not sort as numbers (negative
ones come last), so the keys of stores have forms of their own, which do.
"""

from __future__ import annotations

import struct
from operator import index
from typing import Any, ClassVar

from penstock.api.serdes.base import Serde, T


class _Packed(Serde[T]):
    _struct: ClassVar[struct.Struct]

    def from_bytes(self, data: bytes) -> T:
        value: T = self._struct.unpack(data)[0]
        return value


class Integer(_Packed[int]):
    """A signed integer of 4 bytes, big-endian, as Samza's IntegerSerde.

    As the keys of a store they sort as numbers: there the sign bit is flipped. `SamzaInteger` does not flip it.
    """

    _struct = struct.Struct(">i")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]

    def for_store_keys(self) -> Serde[int]:
        return OrderedInteger()


class Long(_Packed[int]):
    """A signed integer of 8 bytes, big-endian, as Samza's LongSerde and Kafka's LongSerializer.

    As the keys of a store they sort as numbers: there the sign bit is flipped. `SamzaLong` does not flip it.
    """

    _struct = struct.Struct(">q")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]

    def for_store_keys(self) -> Serde[int]:
        return OrderedLong()


class Double(_Packed[float]):
    """An IEEE 754 double of 8 bytes, big-endian, as Samza's DoubleSerde. An int that no double equals is refused.

    Keys are equal where Python says so: -0.0 is written as 0.0. As the keys of a store they sort as numbers, from -inf
    to inf, and NaN, which has no place among them, is refused. `SamzaDouble` keeps Samza's form there too.
    """

    _struct = struct.Struct(">d")

    def to_bytes(self, obj: float) -> bytes:
        return self._struct.pack(obj if type(obj) is float else _as_double(obj))

    def for_keys(self) -> Serde[float]:
        return DoubleKey()

    def for_store_keys(self) -> Serde[float]:
        return OrderedDouble()


class SamzaInteger(Integer):
    """`Integer` in Samza's form also as the keys of a store, for a changelog that Samza reads. They have no ranges."""

    @property
    def name(self) -> str:
        return "integer"

    def for_store_keys(self) -> Serde[int]:
        return self


class SamzaLong(Long):
    """`Long` in Samza's form also as the keys of a store, for a changelog that Samza reads. They have no ranges."""

    @property
    def name(self) -> str:
        return "long"

    def for_store_keys(self) -> Serde[int]:
        return self


class SamzaDouble(Double):
    """`Double` in Samza's form also as the keys of a store, for a changelog that Samza reads. They have no ranges."""

    @property
    def name(self) -> str:
        return "double"

    def for_store_keys(self) -> Serde[float]:
        return self.for_keys()


class DoubleKey(Double):
    """`Double` as the key of a message: equal numbers have equal bytes."""

    @property
    def name(self) -> str:
        return "double"

    def to_bytes(self, obj: float) -> bytes:
        return self._struct.pack((obj if type(obj) is float else _as_double(obj)) + 0.0)  # which makes 0.0 of -0.0

    def for_keys(self) -> Serde[float]:
        return self

    def for_store_keys(self) -> Serde[float]:
        return self


_SIGN_4 = 1 << 31
_SIGN_8 = 1 << 63
_ALL_8 = (1 << 64) - 1


class OrderedInteger(Serde[int]):
    """`Integer` as the key of a store: shifted into 0 to 2^32 - 1, big-endian."""

    ordered = True
    width: ClassVar[int] = 4
    _struct = struct.Struct(">I")

    @property
    def name(self) -> str:
        return "ordered-integer"

    def for_keys(self) -> Serde[int]:
        return Integer()

    def for_store_keys(self) -> Serde[int]:
        return self

    def to_bytes(self, obj: int) -> bytes:
        return self._struct.pack(index(obj) + _SIGN_4)

    def from_bytes(self, data: bytes) -> int:
        value: int = self._struct.unpack(data)[0]
        return value - _SIGN_4


class OrderedLong(Serde[int]):
    """`Long` as the key of a store: shifted into 0 to 2^64 - 1, big-endian."""

    ordered = True
    width: ClassVar[int] = 8
    _struct = struct.Struct(">Q")

    @property
    def name(self) -> str:
        return "ordered-long"

    def for_keys(self) -> Serde[int]:
        return Long()

    def for_store_keys(self) -> Serde[int]:
        return self

    def to_bytes(self, obj: int) -> bytes:
        return self._struct.pack(index(obj) + _SIGN_8)

    def from_bytes(self, data: bytes) -> int:
        value: int = self._struct.unpack(data)[0]
        return value - _SIGN_8


class OrderedDouble(Serde[float]):
    """`Double` as the key of a store: all bits of negative numbers are flipped, of others the sign bit."""

    ordered = True
    width: ClassVar[int] = 8
    _bits = struct.Struct(">Q")
    _double = struct.Struct(">d")

    @property
    def name(self) -> str:
        return "ordered-double"

    def for_keys(self) -> Serde[float]:
        return DoubleKey()

    def for_store_keys(self) -> Serde[float]:
        return self

    def to_bytes(self, obj: float) -> bytes:
        if obj != obj:
            raise ValueError("NaN cannot be the key of a store: it equals no key and has no place in their order")
        value = (obj if type(obj) is float else _as_double(obj)) + 0.0  # which makes 0.0 of -0.0
        bits: int = self._bits.unpack(self._double.pack(value))[0]
        return self._bits.pack(bits ^ (_ALL_8 if bits & _SIGN_8 else _SIGN_8))

    def from_bytes(self, data: bytes) -> float:
        bits: int = self._bits.unpack(data)[0]
        value: float = self._double.unpack(self._bits.pack(bits ^ (_SIGN_8 if bits & _SIGN_8 else _ALL_8)))[0]
        return value


def _as_double(obj: Any) -> float:
    """The double that equals the number. Raises ValueError if there is none, TypeError if it is no number."""
    if isinstance(obj, str | bytes | bytearray):
        raise TypeError(f"a double is a number, not {type(obj).__name__}")
    value = float(obj)
    if value != obj and obj == obj:
        raise ValueError(f"no double equals {obj!r}")
    return value
