"""Serdes of numbers, of JSON, and of tuples, which are keys for ranges and prefixes over several fields.

Messages and values have the big-endian forms of Samza and Kafka. The bytes of these do not sort as the numbers do:
negative numbers come last. The keys of stores therefore have separate forms, whose bytes sort as the numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import index
from typing import Any, ClassVar

import msgspec.json
import orjson

from penstock.api.serdes.base import Serde, T, given_serde
from penstock.errors import ConfigError


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


# Integers beyond 64 bits: orjson refuses to write them and would read them as the nearest double, so that two become
# one; msgspec reads them as they are, as fast.

_HARMLESS = frozenset({type(None), str, int, bool})
_decode: Callable[[bytes], Any] = msgspec.json.decode


class Json(Serde[Any]):
    """JSON as compact UTF-8: dicts with string keys, lists, strings, numbers, booleans, None.

    Integers of any size are read exactly. Those beyond 64 bits (less than -2^63, or 2^64 and more) are not written:
    `to_bytes` raises. It also raises for NaN and the infinities, which JSON does not have. Some objects are read as
    another type: datetimes, dates, times and UUIDs are read as text, enum members as their values, dataclasses as
    dicts, and tuples as lists. Keys with the same JSON are one key; 1 and 1.0 are two keys. JSON keys have no ranges.

    Example:
        >>> ps.Json().to_bytes({"tail": "N14228", "miles": 1400})
        b'{"tail":"N14228","miles":1400}'
        >>> ps.Json().from_bytes(b'[1, null]')
        [1, None]
    """

    def for_keys(self) -> Serde[Any]:
        return JsonKey()

    def to_bytes(self, obj: Any) -> bytes:
        # A copy, because orjson's own bytes sit in a block of a kilobyte or more that was cut down to size: a hundred
        # thousand small ones that are kept pin hundreds of megabytes, and touching those costs more than the copy.
        data = orjson.dumps(obj)
        if b"null" in data:
            refuse_nan(obj)
        return b"%b" % data

    from_bytes = staticmethod(_decode)  # type: ignore[assignment]


class JsonKey(Serde[Any]):
    """JSON for keys: the fields of an object are sorted, so that equal dicts have equal bytes. Publishers use it."""

    @property
    def name(self) -> str:
        return "json"

    def to_bytes(self, obj: Any) -> bytes:
        data = orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
        if b"null" in data:
            refuse_nan(obj)
        return b"%b" % data

    from_bytes = staticmethod(_decode)  # type: ignore[assignment]


def refuse_nan(obj: Any) -> None:
    """Raise ValueError if the object has a NaN or an infinity, which would be written as null, and read as None."""
    waiting = [obj]
    for each in waiting:
        if type(each) in _HARMLESS:
            pass
        elif isinstance(each, float):
            if not math.isfinite(each):
                raise ValueError(f"JSON has no {each}: write None or a text for it, or use a serde that has it")
        elif isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)
        elif isinstance(each, Enum):
            waiting.append(each.value)
        elif is_dataclass(each) and not isinstance(each, type):
            waiting.extend(getattr(each, field.name, None) for field in fields(each))


_END = b"\x00\x01"
_ZERO = b"\x00"
_ESCAPED_ZERO = b"\x00\xff"


class Tuple(Serde[tuple[Any, ...]]):
    """Tuples with a fixed number of fields, whose bytes sort as the tuples do: by the first field, then by the next.

    Each field has a serde whose bytes sort as its objects: `String`, `Bytes`, `Integer`, `Long`, `Double`, another
    `Tuple`, or one of your own with `ordered = True`. Numbers have a fixed width. In every other field a zero byte is
    written as 00 FF, and the field ends with 00 01. A field is never None.

    Example:
        >>> serde = ps.Tuple(ps.String(), ps.Long())
        >>> nine, hundred = serde.to_bytes(("N14228", 9)), serde.to_bytes(("N14228", 100))
        >>> nine < hundred, nine.startswith(serde.prefix_to_bytes(("N14228",))), serde.from_bytes(nine)
        (True, True, ('N14228', 9))
    """

    ordered = True

    def __init__(self, *fields: Serde[Any]) -> None:
        """Make a serde of tuples.

        Args:
            fields: the serdes of the fields, in order.

        Raises:
            ConfigError: there are no fields, one is not a serde, or its bytes do not sort as its objects.
        """
        if not fields:
            raise ConfigError("ps.Tuple() takes the serdes of its fields, as in ps.Tuple(ps.String(), ps.Long())")
        given = [given_serde(field, f"ps.Tuple(): the serde of field {i}") for i, field in enumerate(fields)]
        self.fields = tuple(serde.for_store_keys() for serde in given)
        for serde, field in zip(given, self.fields, strict=True):
            if not field.ordered:
                raise ConfigError(
                    f"the bytes of ps.{type(serde).__name__}() do not sort as its objects, so it cannot be a field of "
                    "ps.Tuple(): use String, Bytes, Integer, Long, Double or Tuple"
                )

    @property
    def name(self) -> str:
        return f"tuple({','.join(field.name for field in self.fields)})"

    def for_keys(self) -> Serde[tuple[Any, ...]]:
        return self

    def to_bytes(self, obj: tuple[Any, ...]) -> bytes:
        if not isinstance(obj, tuple):
            raise TypeError(f"expected a tuple of {len(self.fields)} fields, found {type(obj).__name__}")
        if len(obj) != len(self.fields):
            raise ValueError(f"expected {len(self.fields)} fields, found {len(obj)}")
        return self.prefix_to_bytes(obj)

    def from_bytes(self, data: bytes) -> tuple[Any, ...]:
        made: list[Any] = []
        start = 0
        for field in self.fields:
            width: int | None = getattr(field, "width", None)
            end = _end_of_escaped(data, start) if width is None else start + width
            part = data[start:end]
            made.append(field.from_bytes(part if width is not None else part.replace(_ESCAPED_ZERO, _ZERO)))
            start = end if width is not None else end + len(_END)
        if start != len(data):
            raise ValueError(f"a tuple of {len(self.fields)} fields ends after {start} of {len(data)} bytes")
        return tuple(made)

    def bound_to_bytes(self, bound: tuple[Any, ...]) -> bytes:
        return self.prefix_to_bytes(bound)

    def prefix_to_bytes(self, prefix: tuple[Any, ...]) -> bytes:
        if not isinstance(prefix, tuple) or len(prefix) > len(self.fields):
            raise TypeError(f"expected a tuple of at most {len(self.fields)} fields, found {prefix!r}")
        parts: list[bytes] = []
        for number, (field, value) in enumerate(zip(self.fields, prefix, strict=False)):
            if value is None:
                raise TypeError(f"field {number} is None: a field of a tuple always has a value")
            part = field.to_bytes(value)
            parts.append(part if hasattr(field, "width") else part.replace(_ZERO, _ESCAPED_ZERO) + _END)
        return b"".join(parts)


def _end_of_escaped(data: bytes, start: int) -> int:
    """The end of a field. A zero of the field is always followed by FF, so the first 00 01 is its end."""
    end = data.find(_END, start)
    if end < 0:
        raise ValueError(f"the field that begins at byte {start} does not end")
    return end
