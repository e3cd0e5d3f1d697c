"""Stored documents: reading them strictly, and dataclasses as JSON.

A field has the type that it was written with, or the document is damaged. A `Form` gives a dataclass its JSON: fields
by name, with ids, streams and partitions as texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import msgspec
import orjson

from penstock.base.wording import printable
from penstock.errors import ConfigError, CorruptError, IncompatibleError, PenstockError

T = TypeVar("T")
_LARGEST = (1 << 63) - 1
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
"""A whole number of at most 63 bits, as the type of a field."""
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]
"""A `Count` of at least 1."""
Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-_LARGEST - 1, le=_LARGEST)]
"""Epoch milliseconds, also before 1970."""
_Digits: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,19}\Z")]
_LONGEST_REASON = 1000
_types = threading.Lock()


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Turn any error of a decoder over unexpected bytes into a CorruptError that begins with `what`.

    Other errors of Penstock pass. An id or a name that is malformed in a stored document is damage, not a mistake of
    the user. Too little memory, and errors of the operating system, are not about the document: they pass as well.
    """
    try:
        yield
    except (ConfigError, msgspec.ValidationError) as error:
        raise CorruptError(f"{what}: {_short(str(error))}") from error
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"{what}: it is not JSON ({error})") from error
    except (PenstockError, MemoryError, OSError):
        raise
    except Exception as error:
        raise CorruptError(f"{what}: {_short(repr(error))}") from error


class VersionedDocument(msgspec.Struct):
    """A document that names its format."""

    format: Positive


def decode(form: type[T], data: str | bytes, what: str) -> T:
    """Read JSON as a value of the type `form`, a dataclass or a msgspec Struct. Fields without a default must be there;
    unknown ones are ignored.

    orjson parses, because msgspec alone skips unknown fields without a look at their bytes.

    Args:
        what: begins the error, which names the field by its path: `lease x is damaged: Expected int, got str - at
            $.holder.pid`.

    Raises:
        CorruptError: it is not JSON, or a field is missing, has another type, or is out of range.

    Example:
        >>> decode(dict[str, int], '{"a": 1}', "a test")
        {'a': 1}
    """
    with decoding(what):
        return convert(form, orjson.loads(data))


def decode_format(form: type[T], data: str | bytes, what: str, name: str, newest: int) -> T:
    """As `decode`, for a document whose field `format` names its format.

    Args:
        name: the document, for an error about a newer format.
        newest: the newest format that `form` reads.

    Raises:
        IncompatibleError: its format is newer. Nothing else of it is looked at.
    """
    with decoding(what):
        document = orjson.loads(data)
        written = convert(VersionedDocument, document).format
        if written > newest:
            raise unread_format(name, written, newest)
        return convert(form, document)


def unread_format(name: str, written: object, newest: object, *, is_newer: bool = True) -> IncompatibleError:
    """The error for what another version of Penstock wrote in a format that this one does not read.

    Args:
        name: what it is, as the subject of the sentence.
        written: its format.
        newest: the newest format that is read.
        is_newer: False for a format that no later version reads either.
    """
    advice = "Run the version that wrote it" + (", or a newer one" if is_newer else "")
    return IncompatibleError(f"{name} has format {written}; this Penstock reads formats up to {newest}. {advice}")


def convert(form: type[T], document: object) -> T:
    """Convert parsed JSON to the type `form`. Raises msgspec.ValidationError; see `decoding`."""
    decoder(form)
    return msgspec.convert(document, form, str_keys=True)


def decoder(form: type[T]) -> msgspec.msgpack.Decoder[T]:
    """The decoder of MessagePack to the type `form`.

    Everything that decodes into classes asks here first: msgspec builds its notes on a class at the first use, and a
    second thread that meets the class meanwhile reads half-written notes, which ends the process.
    """
    key: Any = form  # mypy finds classes that are not hashable among them
    found: msgspec.msgpack.Decoder[T] = _decoder(key)
    return found


@cache
def _decoder(form: Any) -> Any:
    with _types:
        return msgspec.msgpack.Decoder(form)


def _short(reason: str) -> str:
    """Shorten a reason: it may quote the document, which may be large."""
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ..."


def text_or_hex(name: str, data: bytes | None) -> dict[str, str | None]:
    """The field for these bytes in a document for people: text or null under `name`; bytes that are not text as
    hexadecimal digits under `name` with `Hex` appended.

    Example:
        >>> text_or_hex("key", b"k") | text_or_hex("value", bytes([255]))
        {'key': 'k', 'valueHex': 'ff'}
    """
    text = None if data is None else printable(data)
    return {name: text} if text is not None or data is None else {f"{name}Hex": data.hex()}


def number(digits: str) -> int:
    """A whole number written as text, as in keys: decimal digits without a sign. Raises msgspec.ValidationError."""
    return convert(Count, int(convert(_Digits, digits)))


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """The written form of the values of one type. `plain` is their type in JSON, which is checked when they are read.
    By default a value is written as msgspec writes it."""

    plain: Any
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same

    def encode(self, value: Any) -> Any:
        """The value as JSON has it. Equal values are written alike."""
        return msgspec.to_builtins(self.write(value), str_keys=True, enc_hook=dict)  # mappings of other classes

    def decode(self, document: object) -> Any:
        """The value that was written. Raises msgspec.ValidationError or ConfigError; see `documents.decoding`."""
        return self.read(convert(self.plain, document))


def text(parse: Callable[[str], Any]) -> Form:
    """A value that is written as its `str`."""
    return Form(str, str, parse)


def optional(form: Form) -> Form:
    """None, or a value of the form."""
    return Form(
        form.plain | None,
        lambda value: None if value is None else form.write(value),
        lambda value: None if value is None else form.read(value),
    )


def each(form: Form) -> Form:
    """A tuple."""
    return Form(
        GenericAlias(tuple, (form.plain, ...)),
        lambda values: tuple(map(form.write, values)),
        lambda values: tuple(map(form.read, values)),
    )


def mapping(keys: Form, values: Form) -> Form:
    """A mapping. The keys are texts or numbers in JSON."""
    return Form(
        GenericAlias(dict, (keys.plain, values.plain)),
        lambda found: {keys.write(key): values.write(value) for key, value in found.items()},
        lambda found: {keys.read(key): values.read(value) for key, value in found.items()},
    )


def dataclass_form(cls: type[Any], **forms: Form) -> Form:
    """A dataclass, of which some fields have forms of their own. A field that has its default is left out."""
    hints = get_type_hints(cls, include_extras=True)
    by_name = {name: forms.get(name, Form(hint)) for name, hint in hints.items()}
    defaults = {
        own.name: own.default if own.default_factory is MISSING else own.default_factory()
        for own in fields(cls)
        if own.default is not MISSING or own.default_factory is not MISSING
    }
    plain = msgspec.defstruct(
        f"_{cls.__name__}",
        [
            (name, form.plain, *((form.write(defaults[name]),) if name in defaults else ()))
            for name, form in by_name.items()
        ],
        kw_only=True,
    )

    def write(value: Any) -> Mapping[str, Any]:
        held = {name: getattr(value, name) for name in by_name}
        return {name: by_name[name].write(own) for name, own in held.items() if own != defaults.get(name, MISSING)}

    def read(found: Any) -> Any:
        return cls(**{name: form.read(getattr(found, name)) for name, form in by_name.items()})

    return Form(plain, write, read)
