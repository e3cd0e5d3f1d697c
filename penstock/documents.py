"""Reading stored documents strictly: a field has the type it was written with, or the document is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import ConfigError, CorruptError, PenstockError

_LARGEST = (1 << 63) - 1
_LONGEST_REASON = 1000


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Turn whatever a decoder meets in bytes it did not expect into a CorruptError that begins with `what`.

    Other errors of Penstock pass. An id or a name that is malformed in a stored document is damage, not a mistake of
    the user. Too little memory, and errors of the operating system, are not about the document: they pass as well.
    """
    try:
        yield
    except ConfigError as error:
        raise CorruptError(f"{what}: {_short(str(error))}") from error
    except (PenstockError, MemoryError, OSError):
        raise
    except Exception as error:
        raise CorruptError(f"{what}: {_short(repr(error))}") from error


def _short(reason: str) -> str:
    """A reason may quote the document, which may be large."""
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ..."


def integer(value: object, at_least: int = 0) -> int:
    """A whole number of at most 63 bits. Raises TypeError or ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    if not at_least <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not between {at_least} and {_LARGEST}")
    return value


def text(value: object) -> str:
    """A string. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def flag(value: object) -> bool:
    """A boolean. Raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def array(value: object) -> list[Any]:
    """A list. Raises TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def fields(value: object) -> dict[str, Any]:
    """A JSON object. Raises TypeError."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return value


def number(value: object) -> int:
    """A whole number written as text, as in keys: decimal digits without a sign. Raises TypeError or ValueError."""
    digits = text(value)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise ValueError(f"{value!r} is not a number")
    return integer(int(digits))
