"""Avro's logical types that are types of Python: dates, times, decimals and UUIDs. Exact in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any
from uuid import UUID

from penstock.base.budgets import MESSAGE_DIGITS
from penstock.base.literals import uuid_of
from penstock.schemas.avro_misfits import MisfitError, shown, wrong

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = _EPOCH.replace(tzinfo=None)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_DAY = timedelta(days=1)
_MICRO = timedelta(microseconds=1)
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


@dataclass(frozen=True, slots=True)
class LogicalTypes:
    """Makes values of a logical type of plain ones, and back.

    Args:
        family: the name of what they are in Python. Types of one family are read as each other.
        takes: whether a value is of Python's type.
        plain: the plain value. Raises MisfitError for one that is not exactly in the type. It takes plain ones, too.
        made: the value of a plain one. Raises ValueError.
    """

    family: str
    takes: Callable[[Any], bool]
    plain: Callable[[Any], Any]
    made: Callable[[Any], Any]


def logical_of(definition: Any) -> LogicalTypes | None:
    """The logical type of a definition; None if it has none, or one that is not known or not valid: as Avro has it, its
    values are plain then. Raises ValueError for decimals that have too many digits."""
    if not isinstance(definition, dict):
        return None
    name, kind = definition.get("logicalType"), definition["type"]
    if name == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(definition)
    return _SIMPLE.get((kind, name))


def _times(name: str, unit: timedelta, *, local: bool) -> LogicalTypes:
    epoch = _LOCAL_EPOCH if local else _EPOCH
    advice = "give it none: .replace(tzinfo=None)" if local else "give it one: datetime(..., tzinfo=UTC)"

    def takes(value: Any) -> bool:
        return isinstance(value, datetime)

    def plain(value: Any) -> Any:
        if not isinstance(value, datetime):
            return _whole(value, f"{name}, nor a datetime", made)
        if (value.tzinfo is None) is not local:
            found = "a" if local else "no"
            raise MisfitError(f"{shown(value)} has {found} time zone, and cannot be a {name}: {advice}")
        return _units(value - epoch, unit, value, name)

    def made(number: int) -> datetime:
        try:
            return epoch + number * unit
        except OverflowError:
            raise ValueError(f"{number} as {name} is no datetime of Python, which has the years 1 to 9999") from None

    return LogicalTypes("datetime without a zone" if local else "datetime", takes, plain, made)


def _units(span: timedelta, unit: timedelta, value: Any, name: str) -> int:
    units, rest = divmod(span, unit)
    if rest:
        raise MisfitError(f"{shown(value)} is between two values of {name}: round it, or declare the type with micros")
    return units


def _time_of_day(name: str, unit: timedelta) -> LogicalTypes:
    most = _DAY // unit

    def takes(value: Any) -> bool:
        return isinstance(value, time)

    def plain(value: Any) -> Any:
        if not isinstance(value, time):
            return _whole(value, f"{name}, nor a time", made)
        if value.tzinfo is not None:
            raise MisfitError(f"{shown(value)} has a time zone, and {name} has none: .replace(tzinfo=None)")
        at = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
        return _units(at, unit, value, name)

    def made(number: int) -> time:
        if not 0 <= number < most:
            raise ValueError(f"{number} is no {name}: a day has 0 to {most - 1}")
        return (_LOCAL_EPOCH + number * unit).time()

    return LogicalTypes("time", takes, plain, made)


def _date() -> LogicalTypes:
    def takes(value: Any) -> bool:
        return isinstance(value, date) and not isinstance(value, datetime)

    def plain(value: Any) -> Any:
        return value.toordinal() - _FIRST_DAY if takes(value) else _whole(value, "date", made)

    def made(number: int) -> date:
        try:
            return date.fromordinal(number + _FIRST_DAY)
        except (ValueError, OverflowError):
            raise ValueError(f"{number} is no date of Python, which has the years 1 to 9999") from None

    return LogicalTypes("date", takes, plain, made)


def _whole(value: Any, wanted: str, made: Callable[[int], Any]) -> int:
    """A number as it stands in Avro, which must be one that can be read. Its range is checked where it is written."""
    if type(value) is not int:
        raise wrong(value, f"Avro {wanted}")
    if value >> 63 not in (0, -1):
        return value
    try:
        made(value)
    except ValueError as error:
        raise MisfitError(str(error)) from None
    return value


def _uuid() -> LogicalTypes:
    def takes(value: Any) -> bool:
        return isinstance(value, UUID)

    def plain(value: Any) -> Any:
        if takes(value):
            return str(value)
        if isinstance(value, str):
            try:
                uuid_of(value)
            except ValueError:
                raise MisfitError(f"{shown(value)} is no UUID") from None
            return value
        raise wrong(value, "UUID")

    return LogicalTypes("UUID", takes, plain, uuid_of)


def _decimal(definition: Any) -> LogicalTypes | None:
    precision, scale = definition.get("precision"), definition.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
        return None
    if precision > MESSAGE_DIGITS:
        raise ValueError(f"a decimal has a precision of {precision}; at most {MESSAGE_DIGITS:,} digits are read")
    kind = _Decimals(precision, scale, definition.get("size"))
    family = f"decimal with {scale} digits after the point"
    return LogicalTypes(family, lambda value: isinstance(value, Decimal), kind.plain, kind.made)


class _Decimals:
    """Decimals of a type: their digits, those after the point, and the bytes if they are fixed."""

    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        self._precision = precision
        self._scale = scale
        self._size = size
        self._end = 10**precision
        self._name = f"Avro decimal with {precision} digits, {scale} of them after the point"

    def plain(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            self.made(value)
            return value
        number = self._unscaled(value)
        size = (number.bit_length() + 8) // 8 if self._size is None else self._size
        return number.to_bytes(size, "big", signed=True)

    def _unscaled(self, value: Any) -> int:
        if type(value) is int:
            value = Decimal(value)
        if not isinstance(value, Decimal):
            raise wrong(value, self._name)
        if not value.is_finite() or (value and value.adjusted() + self._scale >= self._precision):
            raise MisfitError(f"{shown(value)} is no {self._name}")
        scaled = value.scaleb(self._scale, _EXACT)
        whole = scaled.to_integral_value()
        if whole != scaled:
            raise MisfitError(f"{shown(value)} is no {self._name}: round it")
        return int(whole)

    def made(self, data: bytes) -> Decimal:
        number = int.from_bytes(data, "big", signed=True)
        if not -self._end < number < self._end:
            raise MisfitError(f"a decimal of {len(data)} bytes has more than the {self._precision} digits of its type")
        return Decimal(number).scaleb(-self._scale, _EXACT)


_MILLI = timedelta(milliseconds=1)
_SIMPLE: Mapping[tuple[Any, Any], LogicalTypes] = {
    ("long", "timestamp-millis"): _times("timestamp-millis", _MILLI, local=False),
    ("long", "timestamp-micros"): _times("timestamp-micros", _MICRO, local=False),
    ("long", "local-timestamp-millis"): _times("local-timestamp-millis", _MILLI, local=True),
    ("long", "local-timestamp-micros"): _times("local-timestamp-micros", _MICRO, local=True),
    ("int", "time-millis"): _time_of_day("time-millis", _MILLI),
    ("long", "time-micros"): _time_of_day("time-micros", _MICRO),
    ("int", "date"): _date(),
    ("string", "uuid"): _uuid(),
}
