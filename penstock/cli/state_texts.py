"""Keys and values of a store as text and JSON, and back. Pure.

The serdes of Penstock are known by the names a checkpoint has; what is of another serde, or does not decode, is shown
as hex and named once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec.json
import orjson

from penstock.api.serdes import Bytes, Double, Integer, Json, Long, Serde, String
from penstock.cli.output import size_text
from penstock.cli.tail import printable
from penstock.errors import ConfigError

_JSON_KEY = Json().for_keys()
_JSON = (Json, type(_JSON_KEY))
_BUILT_IN: Mapping[str, Serde[Any]] = {
    serde.name: serde for serde in (Bytes(), String(), Integer(), Long(), Double(), _JSON_KEY)
}
_SHOWN = 60
"""Characters of a key or value in a table."""
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_CONTROLS = re.compile(r"[\x7f-\x9f]")
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Texts:
    """The keys, or the values, of a store. `trouble` says, once, why some or all of them are shown as hex."""

    def __init__(self, what: str, name: str, serde: Serde[Any] | None = None) -> None:
        """`what` is `key` or `value`, `name` the serde's; `serde` is the application's own, if it was given."""
        self.trouble: str | None = None
        self._what = what
        self._name = name
        self._serde = serde or _BUILT_IN.get(name)
        if self._serde is None:
            self.trouble = (
                f"the {what} serde `{name}` is not one of Penstock's, so every {what} is shown as hex; "
                "--app module:object takes it from the application"
            )

    def parse(self, text: str) -> bytes:
        """The bytes of a key. A serde of the application's own is given the text.

        Raises:
            ConfigError: the text is none, or keys of this serde have no text.
        """
        if self._serde is None or type(self._serde) is Bytes:
            raise ConfigError(f"keys of the serde `{self._name}` have no text here: give them as hex, with --hex")
        try:
            return self._serde.to_bytes(_PARSERS.get(type(self._serde), str)(text))
        except Exception as error:
            hint = " A text stands in quotes, as '\"text\"'." if self._serde.name == "json" else ""
            raise ConfigError(
                f"`{text}` is not a key of the serde `{self._name}` ({error}).{hint} --hex takes a key's bytes"
            ) from error

    def parse_prefix(self, text: str) -> bytes:
        """The bytes that keys begin with. Raises ConfigError if keys of this serde are no text."""
        if not isinstance(self._serde, (String, *_JSON)):
            raise ConfigError(f"keys of the serde `{self._name}` do not begin with text: give the prefix with --hex")
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} is not UTF-8: give the prefix as hex, with --hex") from error

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
        """What JSON can hold, in a tuple since it may be None; None for what is shown as hex."""
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


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The least bytes greater than all that begin with the prefix; None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def serde_names(layout: str) -> tuple[str, str]:
    """The names of the key and the value serde in a checkpoint's `operators key-serde value-serde`."""
    parts = layout.split(" ")
    return (parts[1], parts[2]) if len(parts) == 3 else ("unknown", "unknown")


def _plain(value: object) -> object:
    """The value as JSON has it. An object of the application's own is its fields, or what `repr` says of it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return orjson.loads(orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS))


def _json(value: object, option: int = 0) -> str:
    text = orjson.dumps(value, option=option).decode()
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError("a whole number is expected")
    return int(text)


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    Integer: _whole_number,
    Long: _whole_number,
    Double: float,
    type(_JSON_KEY): msgspec.json.decode,
}
