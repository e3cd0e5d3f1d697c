"""Typed messages: dataclasses, msgspec's structs, TypedDicts, NamedTuples, attrs and pydantic's models."""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, ForwardRef, Generic, NoReturn, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from penstock.api.serdes import Serde
from penstock.api.serdes.values import refuse_nan
from penstock.base.budgets import MESSAGE_DIGITS, check_decimal, check_numbers_as_keys
from penstock.errors import ConfigError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_Codec: TypeAlias = tuple[Callable[[bytes], Any], Callable[[Any], bytes], Callable[[Any], Any]]
"""From JSON, to JSON, and to Python's own types."""
_MODULES = re.compile(r"\b(?:[^\W\d]\w*\.(?:<locals>\.)?)+(?=[^\W\d])")
"""The modules and functions before the name of a type."""


class Struct(Serde[T], Generic[T]):
    """Objects of a type, as JSON. Messages are checked against the types of the fields when they are read and when they
    are written, so one that does not fit is one failed message. The type reaches the functions and tasks of the
    application, where a type checker sees it.

    The type is a dataclass, a `msgspec.Struct`, a TypedDict, a NamedTuple, a class of attrs or a model of pydantic; or
    a list, a dict or a union of them. Fields that the type does not have are passed over, and one that a message lacks
    has its default. So fields with defaults can be added, in messages and in state.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Trip:
        ...     tail: str
        ...     miles: int = 0
        >>> app = ps.StreamApplication("typed")
        >>> trips = app.input("local.trips", value=ps.Struct(Trip))
        >>> _ = trips.map(lambda trip: trip.miles * 2).send_to(app.output("local.doubled"))
        >>> runner = TestRunner(app).input("local.trips", [Trip("N1", 700)]).run()
        >>> [message.value for message in runner.output("local.doubled")]
        [1400]
    """

    def __init__(self, type: type[T]) -> None:  # noqa: A002 - it is what the argument is
        """Make a serde of a type.

        Args:
            type: the type.

        Raises:
            ConfigError: objects of it have no JSON.
        """
        self.type = type
        self._make()

    def _make(self) -> None:
        decode, self._encode, self._plain = _of_pydantic(self.type) or _of_msgspec(self.type)
        self._decode = _within(decode, self._plain, self.type)
        self.from_bytes = self._decode  # type: ignore[method-assign, assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_hints, (self.type, _written_hints(self.type, {}))

    def __repr__(self) -> str:
        return f"ps.Struct({_shown(self.type)})"

    @property
    def name(self) -> str:
        """See `Serde.name`. The bytes are JSON, so `ps.Json()` may have written them."""
        return "json"

    def to_bytes(self, obj: T) -> bytes:
        """See `Serde.to_bytes`.

        Args:
            obj: an object of the type.
        """
        data = self._encode(obj)
        if b"null" in data:
            refuse_nan(self._plain(obj))
        self._decode(data)  # Python does not check the types of fields, and nobody could read a wrong one
        return data

    def from_bytes(self, data: bytes) -> T:
        """See `Serde.from_bytes`.

        Args:
            data: JSON.
        """
        found: T = self._decode(data)
        return found


def _of_msgspec(kind: Any) -> _Codec:
    try:
        decode = msgspec.json.Decoder(kind).decode
    except Exception as error:
        raise ConfigError(f"ps.Struct({_shown(kind)}): {error}") from error
    _refuse_unknown(kind)
    encode = msgspec.json.Encoder(order="deterministic").encode
    has_class = isinstance(kind, type) and not _is_typed_dict(kind)

    def write(obj: Any) -> bytes:
        if has_class and not isinstance(obj, kind):
            raise TypeError(f"ps.Struct({kind.__name__}) takes a {kind.__name__}, not a {type(obj).__name__}")
        try:
            return encode(obj)
        except TypeError:  # msgspec sorts no keys but texts; what it cannot write raises again
            return encode(msgspec.to_builtins(obj, str_keys=True))

    return decode, write, partial(msgspec.to_builtins, builtin_types=(Decimal,), str_keys=False)


_LARGE_EXPONENT = re.compile(rb"[eE][+-]?(?:[0-9_]{4,}|[\x80-\xff])")
_MANY_DIGITS = re.compile(rb"[0-9._\x80-\xff]{%d,}" % MESSAGE_DIGITS)


def _may_be_large(data: bytes) -> bool:
    """True if there may be a decimal in JSON that is too large. `Decimal` also takes digits of other scripts."""
    return (
        _LARGE_EXPONENT.search(data) is not None
        or b"\\u" in data
        or (len(data) > MESSAGE_DIGITS and _MANY_DIGITS.search(data) is not None)
    )


def _within(decode: Callable[[bytes], Any], plain: Callable[[Any], Any], kind: Any) -> Callable[[bytes], Any]:
    """Reads within the budget of a message. msgspec and pydantic have limits of their own for levels and integers."""
    parts = [*_parts(kind, {})]
    has_decimals, has_keys = Decimal in parts, any(map(_has_numbers_as_keys, parts))
    if not (has_decimals or has_keys):
        return decode

    names = _decimal_fields(kind)

    def decode_within(data: bytes) -> Any:
        if has_keys:
            check_numbers_as_keys(data)
        found = decode(data)
        if not has_decimals:
            return found
        if names is not None and len(data) < MESSAGE_DIGITS:  # quicker than a look at the bytes
            for name in names:
                value = getattr(found, name)
                if type(value) is Decimal and not -MESSAGE_DIGITS < value.adjusted() < MESSAGE_DIGITS:
                    check_decimal(value)
        elif _may_be_large(data):
            _check_decimals(plain(found))
        return found

    return decode_within


def _decimal_fields(kind: Any) -> list[str] | None:
    """The attributes of a class that are decimals, if there are decimals nowhere else in it; None otherwise."""
    if not isinstance(kind, type) or _is_typed_dict(kind) or get_origin(kind) is not None:
        return None
    hints: dict[str, Any] = {}
    with suppress(Exception):  # as in `_parts`
        hints = get_type_hints(kind)
    names = [name for name, each in hints.items() if Decimal in _parts(each, {})]
    plain = all(hints[name] is Decimal or set(get_args(hints[name])) == {Decimal, type(None)} for name in names)
    return names if names and plain else None


def _has_numbers_as_keys(kind: Any) -> bool:
    """True for a dict or a set of values that are hashed as numbers are."""
    origin = get_origin(kind) or kind
    if not isinstance(origin, type) or not issubclass(origin, Mapping | Set):
        return False
    keys = get_args(kind)[:1] or (Any,) * issubclass(origin, Set)
    return any(
        each is Any or (isinstance(each, type) and issubclass(each, int | Decimal | UUID))
        for key in keys
        for each in _parts(key, {})
    )


def _check_decimals(value: Any) -> None:
    if isinstance(value, Decimal):
        check_decimal(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            _check_decimals(key)
            _check_decimals(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _check_decimals(each)


def _parts(kind: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """A type, and those that its values consist of. `seen` keeps those that had their turn, by their `id`."""
    kind = getattr(kind, "__value__", getattr(kind, "__supertype__", kind))
    if id(kind) in seen:
        return
    seen[id(kind)] = kind
    yield kind
    origin = get_origin(kind)
    parts = list(get_args(kind))
    if isinstance(own := origin or kind, type) and own.__module__ != "builtins":
        try:
            parts += get_type_hints(own, include_extras=True).values()
        except Exception:  # of names that are known elsewhere: it may be anything
            parts.append(Decimal)
    for each in parts:
        yield from _parts(each, seen)


def _shown(kind: Any) -> str:
    """A type as it is written where it is imported, as `list[Trip]`."""
    return kind.__name__ if isinstance(kind, type) else _MODULES.sub("", repr(kind))


def _is_typed_dict(kind: Any) -> bool:
    return hasattr(kind, "__total__")


def _refuse_unknown(kind: Any) -> None:
    """Raise ConfigError for a type with a part that msgspec would pass to a hook, which it does not have."""

    def refuse(part: type) -> NoReturn:
        raise ConfigError(
            f"ps.Struct({_shown(kind)}): `{_shown(part)}` is neither a type of JSON values nor a dataclass, a "
            "msgspec.Struct, a TypedDict, a NamedTuple, a class of attrs or a model of pydantic. Use one of these"
        )

    try:
        msgspec.json.schema(kind, schema_hook=refuse)
    except ConfigError:
        raise
    except Exception as error:
        # A type without a schema may have JSON all the same, as one whose defaults are of other types.
        logger.debug("the parts of %s are not checked: %s", _shown(kind), error)


def _of_pydantic(kind: Any) -> _Codec | None:
    """None: there is no model of pydantic in it."""
    pydantic = sys.modules.get("pydantic")  # its models are not defined without it
    if pydantic is None or not _has(kind, pydantic.BaseModel, set()):
        return None
    try:
        adapter = pydantic.TypeAdapter(kind)
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(f"ps.Struct({_shown(kind)}): pydantic cannot read all of it: {error}") from error
    has_class = isinstance(kind, type)

    def write(obj: Any) -> bytes:
        if has_class and not isinstance(obj, kind):
            raise TypeError(f"ps.Struct({_shown(kind)}) takes a {_shown(kind)}, not a {type(obj).__name__}")
        return bytes(adapter.dump_json(obj, warnings="error"))

    return adapter.validate_json, write, adapter.dump_python


def _with_hints(kind: Any, hints: dict[type, dict[str, Any]]) -> Struct[Any]:
    """A serde in another process. Classes of a program that cannot be imported there come with it, but not the names
    in their annotations, if these are texts."""
    for part, own in hints.items():
        try:
            get_type_hints(part)
        except NameError:
            part.__annotations__ = own
    return Struct(kind)


def _written_hints(kind: Any, found: dict[type, dict[str, Any]]) -> dict[type, dict[str, Any]]:
    """The types of annotations, by class: of each class in a type whose annotations are texts, as those of
    `from __future__ import annotations` are."""
    for each in get_args(kind):
        _written_hints(each, found)
    if not isinstance(kind, type) or kind in found:
        return found
    with suppress(NameError, TypeError):  # of a name that nobody can find: msgspec says so
        hints = get_type_hints(kind, include_extras=True)
        for part in kind.__mro__:
            own = vars(part).get("__annotations__", {})
            if part not in found and any(isinstance(each, (str, ForwardRef)) for each in own.values()):
                found[part] = {name: hints[name] for name in own}
        for each in hints.values():
            _written_hints(each, found)
    return found


def _has(kind: Any, base: type, seen: set[int]) -> bool:
    """True if a part of the type is a class of the base."""
    if id(kind) in seen:
        return False
    seen.add(id(kind))
    if isinstance(kind, type) and issubclass(kind, base):
        return True
    parts = list(get_args(kind))
    if dataclasses.is_dataclass(kind) or _is_typed_dict(kind) or hasattr(kind, "_fields"):
        with suppress(NameError):  # of a name that nobody can find: msgspec says so
            parts += get_type_hints(kind).values()
    return any(_has(part, base, seen) for part in parts)
