"""Keys and values of a store as text and JSON, and back. Pure.

The serdes of Penstock are known by the names a checkpoint has; what is of another serde, or does not decode, is shown
as hex and named once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec.json
import orjson

from penstock.admin.state.serdes import serde_of
from penstock.api.serdes import Bytes, Double, Integer, Json, JsonKey, Long, Serde, String, Tuple
from penstock.api.serdes.values import OrderedDouble, OrderedInteger, OrderedLong
from penstock.base.exact_json import float_of, whole_of
from penstock.base.wording import argument, flag, printable, size_text
from penstock.errors import ConfigError

_JSON = (Json, JsonKey)
_WHOLE = (Integer, Long, OrderedInteger, OrderedLong)
_DOUBLE = (Double, OrderedDouble)
_HOW = f"{argument('app')} takes it from the application"
_OF_PROCESSOR = re.compile(r"(key|value|list|map)-\d+\(")
_HOW_PROCESSOR = "`penstock.spark.read_state` shows the state of a PySpark processor as a DataFrame"
_SHOWN = 60
"""Characters of a key or value in a table."""
_CONTROLS = re.compile(r"[\x7f-\x9f]")
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Texts:
    """The keys, or the values, of a store. `trouble` says, once, why some or all of them are shown as hex."""

    def __init__(self, what: str, name: str, serde: Serde[Any] | None = None) -> None:
        """`what` is `key` or `value`, `name` the serde's; `serde` is the application's own, if it was given."""
        self.trouble: str | None = None
        self._what = what
        self._name = name
        self._serde = serde or serde_of(name)
        if self._serde is None:
            self.trouble = (
                f"the {what} serde `{name}` is not one of Penstock's, so every {what} is shown as hex; "
                f"{_HOW_PROCESSOR if _OF_PROCESSOR.match(name) else _HOW}"
            )

    def parse(self, text: str) -> bytes:
        """The bytes of a key. A serde of the application's own is given the text; a tuple is a JSON list.

        Raises:
            ConfigError: the text is none, or keys of this serde have no text.
        """
        return self._parsed(text, lambda serde, key: serde.to_bytes(key))

    def parse_bound(self, text: str) -> bytes:
        """The bytes of an end of a range: a key, or the first fields of one that is a tuple. Raises as `parse`."""
        return self._parsed(text, lambda serde, key: serde.bound_to_bytes(key))

    def _parsed(self, text: str, write: Callable[[Serde[Any], Any], bytes]) -> bytes:
        if self._serde is None or type(self._serde) is Bytes:
            raise ConfigError(
                f"keys of the serde `{self._name}` cannot be given as text: give them as hex, with {flag('as_hex')}"
            )
        try:
            return write(self._serde, _key_of(self._serde, text))
        except Exception as error:
            hint = " A text is written in quotes, as '\"text\"'." if self._serde.name == "json" else ""
            if isinstance(self._serde, Tuple):
                hint = " A tuple is written as a JSON list of its fields, as '[\"text\", 5]', bytes as hex."
            raise ConfigError(
                f"`{text}` is not a key of the serde `{self._name}` ({error}).{hint} "
                f"{flag('as_hex')} takes a key's bytes"
            ) from error

    def parse_prefix(self, text: str) -> bytes:
        """The bytes that keys begin with: a text, or the first fields of tuples. Raises ConfigError for other keys."""
        if isinstance(self._serde, Tuple):
            return self._parsed(text, lambda serde, key: serde.prefix_to_bytes(key))
        if not isinstance(self._serde, (String, *_JSON)):
            raise ConfigError(
                f"keys of the serde `{self._name}` do not begin with text: give the prefix with {flag('as_hex')}"
            )
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} is not UTF-8: give the prefix as hex, with {flag('as_hex')}") from error

    def field(self, name: str, data: bytes) -> dict[str, Any]:
        """A field of a JSON object: the value under `name`, or its hex under `<name>Hex`."""
        found = self._decode(data)
        return {f"{name}Hex": data.hex()} if found is None else {name: found[0]}

    def full(self, data: bytes) -> str:
        """The whole of it for people; JSON is indented, hex begins with 0x."""
        found = self._decode(data)
        if found is None:
            return f"0x{data.hex()}"
        return self._text(found[0]) or _json(found[0], orjson.OPT_INDENT_2)

    def short(self, data: bytes) -> str:
        """On one line, as much of it as a table's cell holds, and the size of what is longer."""
        found = self._decode(data)
        text = f"0x{data[:_SHOWN].hex()}" if found is None else self._text(found[0]) or _json(found[0])
        text = text.translate(_ESCAPES)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({size_text(len(data))})"

    def _text(self, value: object) -> str | None:
        """A text that may be printed as it is. JSON is shown as such, and so is an empty text."""
        if isinstance(self._serde, _JSON) or not isinstance(value, str) or not value:
            return None
        return value if printable(value.encode()) is not None else None

    def _decode(self, data: bytes) -> tuple[Any] | None:
        """The value as JSON, in a tuple because it may be None; None if it is shown as hex."""
        if self._serde is None:
            return None
        try:
            value = self._serde.from_bytes(data)
            return None if isinstance(value, bytes | bytearray) else (_plain(value),)
        except Exception as error:
            self.trouble = self.trouble or (
                f"a {self._what} that the serde `{self._name}` cannot read is shown as hex ({type(error).__name__}: "
                f"{error})"
            )
            return None


def parse_hex(text: str) -> bytes:
    """Bytes of hex, with or without 0x before it. Raises ConfigError."""
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise ConfigError(f"`{text}` is not hex: {error}") from error


def _plain(value: object) -> object:
    """The value as JSON. An object of the application's own becomes its fields, or its `repr`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple):  # of a Tuple
        return [field.hex() if isinstance(field, bytes) else _plain(field) for field in value]
    return orjson.loads(orjson.dumps(value, default=_text_of, option=orjson.OPT_NON_STR_KEYS))


def _text_of(value: object) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


def _json(value: object, option: int = 0) -> str:
    text = orjson.dumps(value, option=option).decode()
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _key_of(serde: Serde[Any], text: str) -> Any:
    if isinstance(serde, _WHOLE):
        return whole_of(text)
    if isinstance(serde, _DOUBLE):
        return float_of(text)
    if isinstance(serde, _JSON):
        return msgspec.json.decode(text)
    if isinstance(serde, Tuple):
        return _fields_of(serde, msgspec.json.decode(text, type=list[Any]))
    return text


def _fields_of(serde: Tuple, values: list[Any]) -> tuple[Any, ...]:
    """The fields of a tuple, from JSON: bytes are hex, an infinite double is a text."""
    made: list[Any] = []
    for field, value in zip(serde.fields, values, strict=False):
        if isinstance(field, Tuple):
            made.append(_fields_of(field, value))
        elif isinstance(field, Bytes):
            made.append(bytes.fromhex(value))
        else:
            made.append(_double(value) if isinstance(field, OrderedDouble) else value)
    return (*made, *values[len(serde.fields) :])


def _double(value: Any) -> float:
    return float_of(value) if isinstance(value, str) else float(value)
