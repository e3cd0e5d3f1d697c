"""The serdes of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec.json
import orjson

from penstock.api.serdes.base import Serde

# Integers beyond 64 bits: orjson refuses to write them and would read them as the nearest double, so that two become
# one; msgspec reads them as they are, as fast.

_decode: Callable[[bytes], Any] = msgspec.json.decode


class Json(Serde[Any]):
    """JSON as compact UTF-8: dicts with string keys, lists, strings, numbers, booleans, None.

    Integers of any size are read exactly. Those beyond 64 bits (less than -2^63, or 2^64 and more) are not written:
    `to_bytes` raises. Dates, UUIDs and dataclasses are written as text or objects, and read as text or dicts. NaN and
    the infinities are read as None in a value, and refused in a key. Keys with the same JSON are one key; 1 and 1.0 are
    two keys. JSON keys have no ranges.

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
        return b"%b" % orjson.dumps(obj)

    from_bytes = staticmethod(_decode)  # type: ignore[assignment]


class JsonKey(Serde[Any]):
    """JSON for keys: the fields of an object are sorted, so that equal dicts have equal bytes. Publishers use it."""

    @property
    def name(self) -> str:
        return "json"

    def to_bytes(self, obj: Any) -> bytes:
        data = orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
        if b"null" in data and _has_no_json(obj):
            raise ValueError("JSON has no NaN and no infinities, so a key cannot hold them")
        return b"%b" % data

    from_bytes = staticmethod(_decode)  # type: ignore[assignment]


def _has_no_json(obj: Any) -> bool:
    if isinstance(obj, float):
        return not math.isfinite(obj)
    if isinstance(obj, dict):
        return any(map(_has_no_json, obj.values()))
    return isinstance(obj, list | tuple) and any(map(_has_no_json, obj))
