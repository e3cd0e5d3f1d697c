"""Serdes of numbers.

Messages and values have the big-endian forms of Samza and Kafka. The bytes of these do not sort as the numbers do:
negative numbers come last. The keys of stores therefore have separate forms, whose bytes sort as the numbers.
"""

from __future__ import annotations

import struct
from operator import index
from typing import Any, ClassVar

from penstock.api.serdes.base import Serde, T


class _PackedNumber(Serde[T]):
    _struct: ClassVar[struct.Struct]

    def from_bytes(self, data: bytes) -> T:
        value: T = self._struct.unpack(data)[0]
        return value


class Integer(_PackedNumber[int]):
    r"""A signed integer of 4 bytes, big-endian, as Samza's IntegerSerde.

    The keys of a store sort as numbers, because their sign bit is flipped. `SamzaInteger` does not flip it.

    Example:
        >>> ps.Integer().to_bytes(517)
        b'\x00\x00\x02\x05'
    """

    _struct = struct.Struct(">i")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]

    def for_store_keys(self) -> Serde[int]:
        return OrderedInteger()


class Long(_PackedNumber[int]):
    r"""A signed integer of 8 bytes, big-endian, as Samza's LongSerde and Kafka's LongSerializer.

    The keys of a store sort as numbers, because their sign bit is flipped. `SamzaLong` does not flip it.

    Example:
        >>> ps.Long().to_bytes(-1)
        b'\xff\xff\xff\xff\xff\xff\xff\xff'
        >>> ps.Long().for_store_keys().to_bytes(-1)
        b'\x7f\xff\xff\xff\xff\xff\xff\xff'
    """

    _struct = struct.Struct(">q")
    to_bytes = staticmethod(_struct.pack)  # type: ignore[assignment]

    def for_store_keys(self) -> Serde[int]:
        return OrderedLong()


class Double(_PackedNumber[float]):
    """An IEEE 754 double of 8 bytes, big-endian, as Samza's DoubleSerde. An int that equals no double is refused.

    A key -0.0 is written as 0.0, because the two are equal in Python. The keys of a store sort as numbers, from -inf to
    inf; NaN is refused as such a key. `SamzaDouble` uses Samza's form for the keys of stores too.

    Example:
        >>> ps.Double().from_bytes(ps.Double().to_bytes(2))
        2.0
    """

    _struct = struct.Struct(">d")

    def to_bytes(self, obj: float) -> bytes:
        return self._struct.pack(obj if type(obj) is float else _as_double(obj))

    def for_keys(self) -> Serde[float]:
        return DoubleKey()

    def for_store_keys(self) -> Serde[float]:
        return OrderedDouble()


class SamzaInteger(Integer):
    """`Integer` whose keys of stores have Samza's form too, for a changelog that Samza reads. They have no ranges.

    Example:
        >>> ps.SamzaInteger().for_store_keys().ordered
        False
    """

    @property
    def name(self) -> str:
        return "integer"

    def for_store_keys(self) -> Serde[int]:
        return self


class SamzaLong(Long):
    """`Long` whose keys of stores have Samza's form too, for a changelog that Samza reads. They have no ranges.

    Example:
        >>> ps.SamzaLong().for_store_keys().ordered
        False
    """

    @property
    def name(self) -> str:
        return "long"

    def for_store_keys(self) -> Serde[int]:
        return self


class SamzaDouble(Double):
    """`Double` whose keys of stores have Samza's form too, for a changelog that Samza reads. They have no ranges.

    Example:
        >>> ps.SamzaDouble().for_store_keys().ordered
        False
    """

    @property
    def name(self) -> str:
        return "double"

    def for_store_keys(self) -> Serde[float]:
        return self.for_keys()


class DoubleKey(Double):
    """`Double` for the keys of messages: equal numbers have equal bytes."""

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
    """`Integer` for the keys of stores: shifted into 0 to 2^32 - 1, big-endian."""

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
    """`Long` for the keys of stores: shifted into 0 to 2^64 - 1, big-endian."""

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
    """`Double` for the keys of stores: all bits of negative numbers are flipped, and the sign bit of the others."""

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
    """The double that equals the number. Raises ValueError if there is none, TypeError if `obj` is not a number."""
    if isinstance(obj, str | bytes | bytearray):
        raise TypeError(f"a double is a number, not {type(obj).__name__}")
    value = float(obj)
    if value != obj and obj == obj:
        raise ValueError(f"no double equals {obj!r}")
    return value
