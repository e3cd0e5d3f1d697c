"""States of aggregates as JSON, with what JSON does not have: decimals, times, bytes, long integers, NaN, infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import orjson

_TAG = "\x00value"
"""The key of an object that stands for a value. A text of the application that has it is one itself."""
_MARK = orjson.dumps(_TAG)[1:-1]
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME


def encode_state(state: Any) -> bytes:
    """The bytes of a state.

    Raises:
        TypeError: a value has no form here.
    """
    try:
        data = orjson.dumps(state, _tagged, _OPTIONS)
        if b"null" not in data and _MARK not in data:
            return data
    except TypeError:  # a whole number of more than 64 bits, or a key that is no text
        pass
    try:
        return orjson.dumps(_whole(state), _tagged, _OPTIONS)
    except TypeError as error:
        raise error.__cause__ or error from None


def decode_state(data: bytes) -> Any:
    """The state of the bytes."""
    found = orjson.loads(data)
    return _restored(found) if _MARK in data else found


def _tagged(value: Any) -> Any:
    kind: Any = type(value)
    if kind.__module__.startswith("pandas.") and isinstance(value, datetime | timedelta):
        nanoseconds: Any = attrgetter("value")(value)
        zone = getattr(value, "tz", None)
        return {_TAG: [kind.__name__, nanoseconds, None if zone is None else str(zone)]}
    if kind is datetime and isinstance(value.tzinfo, ZoneInfo):
        moment = value.replace(tzinfo=None).isoformat()
        return {_TAG: ["zoned", moment, value.tzinfo.key, value.fold]}
    if (written := _FORMS.get(kind)) is None:
        raise TypeError(f"a value of type {kind.__name__} cannot be in the state of an aggregate")
    return {_TAG: [kind.__name__, written[0](value)]}


def _whole(value: Any) -> Any:
    """The value, with tags wherever JSON has something else or nothing."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: ["float", repr(value)]}
    if type(value) is int and not _LEAST <= value <= _MOST:
        return {_TAG: ["int", str(value)]}
    if isinstance(value, list | tuple):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _whole(each) for key, each in value.items()}
        return {_TAG: ["dict", [[_whole(key), _whole(each)] for key, each in value.items()]]}
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {_TAG}:
        return {key: _restored(each) for key, each in value.items()}
    kind, *parts = value[_TAG]
    if kind == "dict":
        return {_restored(key): _restored(each) for key, each in parts[0]}
    if kind == "zoned":
        text, zone, fold = parts
        return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    if kind in ("Timestamp", "Timedelta"):  # nanoseconds
        import pandas as pd

        return pd.Timestamp(parts[0], tz=parts[1]) if kind == "Timestamp" else pd.Timedelta(parts[0])
    return _READERS[kind](parts[0])


def _of_microseconds(count: int) -> timedelta:
    return timedelta(microseconds=count)


_FORMS: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    Decimal: (str, Decimal),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    timedelta: (lambda value: value // timedelta(microseconds=1), _of_microseconds),
    bytes: (bytes.hex, bytes.fromhex),
}
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "float": float,
    "int": int,
    **{kind.__name__: read for kind, (_, read) in _FORMS.items()},
}
