"""JSON of state that Penstock writes for itself: what is read equals what was written.

Values that JSON has are JSON. If there are others, as a NaN, a Decimal or a time, a mark comes first, and each of them
is an object with one field that names its type. Numbers that are not finite are those of Python's `json`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from operator import attrgetter, index
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import orjson

from penstock.budgets import check_hashes

_MARK = b"!"
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode


def exact_bytes(value: Any) -> bytes:
    """The bytes of a value: None, numbers, texts, bytes, decimals, dates, times, durations, UUIDs, and lists, tuples
    and dicts of them. Objects of other types with fields are dicts, members of enums their values.

    Raises:
        TypeError, ValueError: it has another object, or a text that is none.
    """
    try:
        data = orjson.dumps(value)
        if _decode(data) == value:
            return b"%b" % data  # a copy, as in Json.to_bytes
    except TypeError:  # of what JSON does not have
        pass
    return _MARK + json.dumps(_tagged(value), ensure_ascii=False, separators=(",", ":")).encode()


def exact_value(data: bytes) -> Any:
    """The value of the bytes. Raises ValueError if they are damaged."""
    if not data.startswith(_MARK):
        return _decode(data)
    return json.loads(data[1:], object_hook=_untagged)


_WRITTEN: Mapping[type, Callable[[Any], Any]] = {
    bytes: lambda value: b64encode(value).decode(),
    bytearray: lambda value: b64encode(value).decode(),
    Decimal: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    UUID: str,
}
_READ: Mapping[str, Callable[[Any], Any]] = {
    "$bytes": b64decode,
    "$bytearray": lambda text: bytearray(b64decode(text)),
    "$Decimal": Decimal,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
    "$UUID": UUID,
    "$zoned": lambda parts: _zoned(parts),
    "$Timestamp": lambda parts: _timestamp(parts),
    "$Timedelta": lambda count: _timedelta(count),
    "$tuple": tuple,
    "$dict": lambda pairs: _dict(pairs),
}


def _tagged(value: Any) -> Any:
    """The value as JSON, in which what JSON does not have is an object with one field."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _tagged(value.value)
    if (special := _tagged_type(value)) is not None:
        return special
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral | Real):
        return _number(value)
    if isinstance(value, list):
        return [_tagged(each) for each in value]
    if isinstance(value, tuple):
        return {"$tuple": [_tagged(each) for each in value]}
    if isinstance(value, Mapping):
        return _tagged_dict(value)
    plain = msgspec.to_builtins(value, builtin_types=tuple(_WRITTEN), str_keys=False)  # of objects with fields
    if type(plain) is type(value):
        raise TypeError(f"a {type(value).__name__} cannot be stored")
    return _tagged(plain)


def _tagged_type(value: Any) -> dict[str, Any] | None:
    """An object that names its type; None for any other value."""
    if type(value) is datetime and isinstance(value.tzinfo, ZoneInfo):
        return {"$zoned": [value.replace(tzinfo=None).isoformat(), value.tzinfo.key, value.fold]}
    if type(value).__module__.startswith("pandas.") and isinstance(value, datetime | timedelta):
        count: Any = attrgetter("value")(value)
        if isinstance(value, timedelta):
            return {"$Timedelta": count}
        zone = getattr(value, "tz", None)
        return {"$Timestamp": [count, None if zone is None else str(zone)]}
    written = _WRITTEN.get(type(value))
    return None if written is None else {f"${type(value).__name__}": written(value)}


def _zoned(parts: list[Any]) -> datetime:
    text, zone, fold = parts
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(_zone(zone)), fold=fold)


def _zone(name: str) -> str:
    """The name of a zone. Raises ValueError for one that would be looked for as a file anywhere."""
    if len(name) > _LONGEST_ZONE or name.startswith("dateutil/"):
        raise ValueError(f"`{name[:_LONGEST_ZONE]}` is no zone")
    return name


def _timestamp(parts: list[Any]) -> Any:
    import pandas as pd

    return pd.Timestamp(index(parts[0]), tz=None if parts[1] is None else _zone(parts[1]))


def _timedelta(count: int) -> Any:
    import pandas as pd

    return pd.Timedelta(index(count))


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    check_hashes(hash(key) for key, _ in pairs)
    return dict(pairs)


_LONGEST_ZONE = 100


def _number(value: Any) -> int | float:
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    if number != value and number == number:
        raise TypeError(f"the {type(value).__name__} {value!r} cannot be stored: it is no float")
    return number


def _tagged_dict(value: Mapping[Any, Any]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _tagged(each) for key, each in value.items()}
    return {"$dict": [[_tagged(key), _tagged(each)] for key, each in value.items()]}


def _untagged(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        ((name, value),) = found.items()
        if (read := _READ.get(name)) is not None:
            return read(value)
    return found
