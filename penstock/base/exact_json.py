"""JSON of state that Penstock writes for itself: what is read equals what was written, and has its types.

Values that JSON has are JSON. If there are others, as a NaN, a set or a time, a mark comes first, and each of them is
an object with one field that names its type. Numbers that are not finite are those of Python's `json`. An object of
any other type is refused: it would come back as something else, or the reader would have to load code that the state
names.
"""

from __future__ import annotations

import json
import marshal
import re
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter, index
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import orjson

from penstock.base.budgets import check_decimal, check_hashes
from penstock.base.wording import lone_surrogate, no_utf8

_MARK = b"!"
_LONGEST_TEXT = 300
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_SCALARS = frozenset({type(None), bool, int, float, str})


def exact_bytes(value: Any) -> bytes:
    """The bytes of a value: None, booleans, numbers (also Decimal, Fraction and NumPy's), texts, bytes, dates, times,
    durations, UUIDs, and lists, tuples, dicts, sets, frozensets, deques, Counters and OrderedDicts of them.

    Raises:
        TypeError, ValueError: it has an object of another type, a subclass of these included, or a text that is none.
    """
    try:
        data = orjson.dumps(value, option=_STRICT)
        if _decode(data) == value:
            marshal.dumps(value, 2)  # refuses members of enums, some of which equal their values
            return b"%b" % data  # a copy, as in Json.to_bytes
    except (TypeError, ValueError):  # of what JSON does not have
        pass
    try:
        return _MARK + json.dumps(_tagged(value), ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply to be stored, or contains itself") from None
    except UnicodeEncodeError as error:
        raise ValueError(no_utf8(value) or lone_surrogate(error)) from None


def exact_value(data: bytes) -> Any:
    """The value of the bytes. Raises ValueError if they are damaged."""
    if not data.startswith(_MARK):
        return _decode(data)
    try:
        return json.loads(data[1:], object_hook=_untagged)
    except ValueError:
        raise
    except Exception as error:  # the constructors of the types raise what they like
        raise ValueError(f"the stored value is damaged: {type(error).__name__}: {error}"[:_LONGEST_TEXT]) from None


_WRITTEN: Mapping[type, Callable[[Any], Any]] = {
    bytes: lambda value: b64encode(value).decode(),
    bytearray: lambda value: b64encode(value).decode(),
    Decimal: str,
    Fraction: lambda value: [value.numerator, value.denominator],
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    UUID: str,
}
_READ: Mapping[str, Callable[[Any], Any]] = {
    "$bytes": b64decode,
    "$bytearray": lambda text: bytearray(b64decode(text)),
    "$Decimal": lambda text: _decimal(text),
    "$Fraction": lambda parts: Fraction(index(parts[0]), index(parts[1])),  # a text may have an exponent of any size
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
    "$UUID": UUID,
    "$zoned": lambda parts: _zoned(parts),
    "$numpy": lambda parts: _numpy(parts),
    "$Timestamp": lambda parts: _timestamp(parts),
    "$Timedelta": lambda count: _timedelta(count),
    "$tuple": tuple,
    "$set": lambda parts: set(_checked(parts)),
    "$frozenset": lambda parts: frozenset(_checked(parts)),
    "$deque": lambda parts: deque(parts[0], parts[1]),
    "$dict": lambda pairs: _dict(pairs),
    "$Counter": lambda pairs: Counter(_dict(pairs)),
    "$OrderedDict": lambda pairs: OrderedDict(_dict(pairs)),
}


def _tagged(value: Any) -> Any:
    """The value as JSON. A value of a kind that JSON does not have becomes an object with one field."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        return [_tagged(each) for each in value]
    if kind is dict:
        return _tagged_dict(value)
    if (make := _CONTAINERS.get(kind)) is not None:
        return {f"${kind.__name__}": make(value)}
    return _tagged_object(value)


def _tagged_dict(value: dict[Any, Any]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _tagged(each) for key, each in value.items()}
    return {"$dict": _pairs(value)}


def _pairs(value: Mapping[Any, Any]) -> list[Any]:
    return [[_tagged(key), _tagged(each)] for key, each in value.items()]


def _elements(value: Any) -> list[Any]:
    return [_tagged(each) for each in value]


def _in_order(value: Any) -> list[Any]:
    """The elements of a set. Equal sets have equal bytes, in every process."""
    return sorted(_elements(value), key=lambda each: json.dumps(each))


_CONTAINERS: Mapping[type, Callable[[Any], Any]] = {
    tuple: _elements,
    set: _in_order,
    frozenset: _in_order,
    deque: lambda value: [_elements(value), value.maxlen],
    Counter: _pairs,
    OrderedDict: _pairs,
}


def _tagged_object(value: Any) -> dict[str, Any]:
    """An object that names its type. It is read at once: what does not come back is refused here."""
    try:
        found = _object_parts(value)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"the {type(value).__name__} {value!r} cannot be stored: {error}") from error
    if found is None:
        raise TypeError(f"a value of type {type(value).__qualname__} cannot be stored: {_ADVICE}")
    ((name, written),) = found.items()
    try:
        read = _READ[name](written)
        is_same = type(read) is type(value) and bool(read == value or value != value)
        is_same = is_same and (getattr(read, "tzinfo", None) is None) == (getattr(value, "tzinfo", None) is None)
    except Exception:
        is_same = False
    if not is_same:
        raise TypeError(f"the {type(value).__name__} {value!r} cannot be stored: it would not come back as it is")
    return found


_ADVICE = (
    "it would not come back as one. Use numbers, texts, bytes, decimals, dates, times, and lists, tuples, dicts and "
    "sets of them, or convert it in `to_json` and back in `from_json`"
)


def _object_parts(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    if kind is datetime and (isinstance(value.tzinfo, ZoneInfo) or (value.tzinfo is None and value.fold)):
        zone = None if value.tzinfo is None else value.tzinfo.key
        return {"$zoned": [value.replace(tzinfo=None, fold=0).isoformat(), zone, value.fold]}
    module = kind.__module__.partition(".")[0]
    if module == "pandas" and isinstance(value, datetime | timedelta):
        count: Any = attrgetter("value")(value)
        if isinstance(value, timedelta):
            return {"$Timedelta": count}
        zone = getattr(value, "tz", None)
        return {"$Timestamp": [count, None if zone is None else str(zone)]}
    if module == "numpy" and (dtype := getattr(value, "dtype", None)) is not None and dtype.kind in "biuf":
        return {"$numpy": [dtype.name, value.item()]} if isinstance(value.item(), int | float) else None
    written = _WRITTEN.get(kind)
    return None if written is None else {f"${kind.__name__}": written(value)}


def _zoned(parts: list[Any]) -> datetime:
    text, zone, fold = parts
    return datetime.fromisoformat(text).replace(tzinfo=None if zone is None else ZoneInfo(_zone(zone)), fold=fold)


def _zone(name: str) -> str:
    """The name of a zone. Raises ValueError for one that would be looked for as a file anywhere."""
    if len(name) > _LONGEST_ZONE or name.startswith("dateutil/"):
        raise ValueError(f"`{name[:_LONGEST_ZONE]}` is no zone")
    return name


def _numpy(parts: list[Any]) -> Any:
    import numpy as np  # late, as pandas below: only such values need it

    name, value = parts
    if name not in np.sctypeDict or np.dtype(name).kind not in "biuf":
        raise ValueError(f"`{name[:_LONGEST_ZONE]}` is no number of NumPy")
    return np.dtype(name).type(value)


def _decimal(text: str) -> Decimal:
    found = Decimal(text)
    check_decimal(found)
    return found


def _timestamp(parts: list[Any]) -> Any:
    import pandas as pd

    return pd.Timestamp(index(parts[0]), tz=None if parts[1] is None else _zone(parts[1]))


def _timedelta(count: int) -> Any:
    import pandas as pd

    return pd.Timedelta(index(count))


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    check_hashes(hash(key) for key, _ in pairs)
    return dict(pairs)


def _checked(members: list[Any]) -> list[Any]:
    """The members of a set."""
    check_hashes(hash(each) for each in members)
    return members


_LONGEST_ZONE = 100


def _untagged(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        ((name, value),) = found.items()
        if (read := _READ.get(name)) is not None:
            return read(value)
    return found


_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,18})?").fullmatch
_SPECIAL = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE | re.ASCII).fullmatch
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}").fullmatch
_UUID = re.compile(r"(?:urn:uuid:)?\{?[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\}?").fullmatch


def decimal_of(text: str) -> Decimal:
    """The number of a text, with all its digits. Raises ValueError if it is none.

    Example:
        >>> decimal_of("-12.50"), decimal_of("1E+3")
        (Decimal('-12.50'), Decimal('1E+3'))
    """
    if _DECIMAL(text) is None:
        raise ValueError(f"{_shown(text)} is no decimal: write it as 12.50")
    return Decimal(text)


def json_decimal(value: Any) -> Any:
    """The decimal of a value of JSON, whose numbers were read as int or Decimal. None stays None.

    Raises:
        ValueError: the value is neither a number nor the text of one.
    """
    kind = type(value)
    if kind is str:
        return decimal_of(value)
    if kind is int:
        return Decimal(value)
    if value is None or kind is Decimal:
        return value
    raise ValueError(f"a value of type {kind.__name__} is no decimal")


def float_of(text: str) -> float:
    """The float of a text, also of `inf` and `nan`. Raises ValueError if it is none."""
    if _DECIMAL(text) is None and _SPECIAL(text) is None:
        raise ValueError(f"{_shown(text)} is no number")
    return float(text)


def whole_of(text: str) -> int:
    """The integer of a text. Raises ValueError if it is none."""
    if _WHOLE(text) is None:
        raise ValueError(f"{_shown(text)} is no integer")
    return int(text)


def uuid_of(text: str) -> UUID:
    """The UUID of a text, with or without its hyphens. Raises ValueError if it is none."""
    if _UUID(text) is None:
        raise ValueError(f"{_shown(text)} is no UUID")
    return UUID(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
