"""The serdes of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec.json
import orjson

from penstock.api.serdes.base import Serde

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
