"""Serdes of values that are made of others: JSON, and tuples as keys, for ranges and prefixes over several
fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec.json
import orjson

from penstock.api.serdes.base import Serde, given_serde
from penstock.errors import ConfigError

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
