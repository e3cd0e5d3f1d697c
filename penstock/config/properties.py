"""The `.properties` format of java.util.Properties: comments, escapes, continued lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|u|.)", re.DOTALL)
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    """One entry; `line` is its first line, counted from 1."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """The text is not a properties file; `line` is the place of the error."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


def parse_properties(text: str) -> list[Property]:
    """The entries in order, repeated keys included (the later one counts).

    Raises:
        PropertiesError: a `\\u` is not followed by four hexadecimal digits, or makes half a character.
    """
    entries = []
    for line, logical in _logical_lines(text):
        found = _KEY.match(logical)
        end = found.end() if found else 0
        key = found[1] if found else ""
        entries.append(Property(_unescape(key, line), _unescape(logical[end:], line), line))
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and blank lines left out."""
    held, begin = "", 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANK)
        if not begin and (not line or line[0] in "#!"):
            continue
        begin = begin or number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            held += line[:-1]
            continue
        yield begin, held + line
        held, begin = "", 0
    if held:
        yield begin, held


def _unescape(text: str, line: int) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code == "u":
            raise PropertiesError(line, "`\\u` must be followed by four hexadecimal digits")
        return chr(int(code[1:], 16)) if len(code) == 5 else _SHORT.get(code, code)

    plain = _ESCAPE.sub(one, text)
    try:
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PropertiesError(line, "a `\\u` escape names one half of a surrogate pair") from None
