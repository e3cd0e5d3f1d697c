"""Values of Avro's types in Python.

Some logical types are types of Python: dates, times, decimals and UUIDs, exact in both directions. A field that is
not given has what the JSON of its default stands for. A value that does not fit is an error with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any
from uuid import UUID

from penstock.base.budgets import MESSAGE_DIGITS, MessageBudget
from penstock.base.exact_json import uuid_of
from penstock.schemas.avro_types import RECORDS, AvroTypes

_SHOWN = 60
"""Characters of a value in an error."""


class MisfitError(Exception):
    """Gets its place from the records, arrays and maps that it passes on its way out."""

    def __init__(self, reason: str, kind: type[Exception] = ValueError) -> None:
        super().__init__(reason)
        self._kind = kind
        self._place = ""

    @classmethod
    def of(cls, error: Exception) -> MisfitError:
        """The same for any error of reading."""
        if isinstance(error, MisfitError):
            return error
        if isinstance(error, IndexError):  # of the bytes: they are read without a look at their end
            return cls("the bytes end before the message does", EOFError)
        kind = type(error) if isinstance(error, EOFError | MemoryError) else ValueError
        return cls(str(error) or type(error).__name__, kind)

    def inside(self, part: str) -> MisfitError:
        """The error as it is seen from the outside of a part: `.name` or `[]`."""
        self._place = part + self._place
        return self

    def error(self) -> Exception:
        """The error for users."""
        place = self._place.lstrip(".")
        if len(place) > _SHOWN:
            place = f"...{place[-_SHOWN:].lstrip('.')}"
        return self._kind(f"`{place}`: {self}" if place else str(self))


def wrong(value: Any, wanted: str) -> MisfitError:
    """The error for a value of another type."""
    return MisfitError(f"{shown(value)} is no {wanted}", TypeError)


def shown(value: Any) -> str:
    """A value for an error."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return text if value is None or isinstance(value, int | float | str | bytes) else f"{text} ({type(value).__name__})"


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


_MOST_VALUES = 100_000
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MOST = {"int": 31, "long": 63}


class SchemaDefaults:
    """Makes the defaults of a schema. They are as values of their type are read: bytes are bytes, dates are dates, and
    a record has the defaults of its own fields."""

    def __init__(self, types: AvroTypes) -> None:
        self._types = types

    def of(self, schema: Any, default: Any) -> Any:
        """The value of a default. Raises MisfitError if it is none of the type.

        Args:
            schema: the type.
            default: as the schema has it.
        """
        return _DefaultMaker(self._types).value(schema, default)


def maker_of(value: Any) -> Callable[[], Any]:
    """A function that makes the value anew: code that gets it may change it."""
    if isinstance(value, dict):
        parts = [(name, maker_of(each)) for name, each in value.items()]
        return lambda: {name: make() for name, make in parts}
    if isinstance(value, list):
        makers = [maker_of(each) for each in value]
        return lambda: [make() for make in makers]
    return lambda: value


def check_defaults(types: AvroTypes) -> None:
    """Raise ValueError if a field has a default that is none of its type."""
    defaults = SchemaDefaults(types)
    for definition in types.records():
        for field in definition["fields"]:
            if "default" in field:
                try:
                    defaults.of(field["type"], field["default"])
                except MisfitError as error:
                    raise error.inside(f".{field['name']}").inside(definition["name"]).error() from error


class _DefaultMaker:
    def __init__(self, types: AvroTypes) -> None:
        self._types = types
        self._budget = MessageBudget(0)
        self._left = _MOST_VALUES

    def value(self, schema: Any, default: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise MisfitError(f"a default has more than {_MOST_VALUES:,} values")
        try:
            self._budget.enter()
        except ValueError as error:
            raise MisfitError(f"a default: {error}") from None
        try:
            return self._of_kind(self._types.kind(schema), self._types.resolved(schema), default)
        finally:
            self._budget.leave()

    def _of_kind(self, kind: str, definition: Any, default: Any) -> Any:
        if kind == "union":
            return self._union(definition, default)
        if kind in RECORDS:
            return self._record(definition, default)
        if kind == "array" and isinstance(default, list):
            return [self.value(definition["items"], each) for each in default]
        if kind == "map" and isinstance(default, dict):
            return {name: self.value(definition["values"], each) for name, each in default.items()}
        plain = _plain(kind, definition, default)
        logical = logical_of(definition)
        try:
            return plain if logical is None else logical.made(plain)
        except ValueError as error:
            raise MisfitError(f"its default is {default!r}: {error}") from None

    def _union(self, branches: Any, default: Any) -> Any:
        """The value of the first branch which takes it. Until Avro 1.12, it was the first branch."""
        for each in branches:
            try:
                return self.value(each, default)
            except MisfitError:
                continue
        raise wrong(default, f"default of {self._types.described(branches)}")

    def _record(self, definition: Any, default: Any) -> Any:
        if not isinstance(default, dict):
            raise wrong(default, f"default of the record `{definition['name']}`")
        found = {}
        for field in definition["fields"]:
            name = field["name"]
            if name not in default and "default" not in field:
                raise MisfitError(f"its default has no field `{name}`, which has none itself")
            try:
                found[name] = self.value(field["type"], default.get(name, field.get("default")))
            except MisfitError as error:
                raise error.inside(f".{name}") from None
        return found


def _plain(kind: str, definition: Any, default: Any) -> Any:
    found = default
    if kind in ("bytes", "fixed") and isinstance(default, str):
        try:
            found = default.encode("latin-1")
        except UnicodeEncodeError:
            raise wrong(default, f"default of {kind}: each character is a byte, \\u0000 to \\u00ff") from None
    elif kind in ("float", "double"):
        found = _FLOATS.get(default, default) if isinstance(default, str) else default
        found = float(found) if type(found) is int else found
    if not _fits(kind, definition, found):
        raise wrong(default, f"default of {kind}")
    return found


def _fits(kind: str, definition: Any, value: Any) -> bool:
    if kind in _MOST:
        return type(value) is int and -(1 << _MOST[kind]) <= value < 1 << _MOST[kind]
    if kind == "fixed":
        return isinstance(value, bytes) and len(value) == definition["size"]
    if kind == "enum":
        return value in definition["symbols"]
    wanted = {"null": type(None), "boolean": bool, "string": str, "bytes": bytes, "float": float, "double": float}
    return type(value) is wanted.get(kind)
