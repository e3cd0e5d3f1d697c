"""JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec.json
import orjson

from penstock.api.serdes.base import Serde

# Integers beyond 64 bits: orjson refuses to write them and would read them as the nearest double, so that two become
# one; msgspec reads them as they are, as fast.


class Json(Serde[Any]):
    """JSON as compact UTF-8: dicts with string keys, lists, strings, numbers, booleans, None.

    Integers of any size are read exactly; one beyond 64 bits (less than -2^63, or 2^64 and more) is not written, which
    raises. Dates, UUIDs and dataclasses are written as text or objects and come back as such. In a value, NaN and the
    infinities come back as None; in a key they are refused. Keys that are written as the same JSON are one key; 1 and
    1.0 are two.
    """

    def for_keys(self) -> Serde[Any]:
        return JsonKey()

    def to_bytes(self, obj: Any) -> bytes:
        # A copy, because orjson's own bytes sit in a block of a kilobyte or more that was cut down to size: a hundred
        # thousand small ones that are kept pin hundreds of megabytes, and touching those costs more than the copy.
        return b"%b" % orjson.dumps(obj)

    from_bytes = staticmethod(msgspec.json.decode)  # type: ignore[assignment]


class JsonKey(Serde[Any]):
    """JSON whose objects have their fields in one order, whatever order the dict has. A publisher writes it too."""

    @property
    def name(self) -> str:
        return "json"

    def to_bytes(self, obj: Any) -> bytes:
        data = orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
        if b"null" in data and _has_no_json(obj):
            raise ValueError("NaN and the infinities have no JSON, so a key cannot hold them")
        return b"%b" % data

    from_bytes = staticmethod(msgspec.json.decode)  # type: ignore[assignment]


def _has_no_json(obj: Any) -> bool:
    if isinstance(obj, float):
        return not math.isfinite(obj)
    if isinstance(obj, dict):
        return any(map(_has_no_json, obj.values()))
    return isinstance(obj, list | tuple) and any(map(_has_no_json, obj))
