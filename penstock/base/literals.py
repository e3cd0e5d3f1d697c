"""Texts that stand for a number or a UUID, in messages, cells and arguments: ASCII, in the form all systems write.

Python's own constructors take more, as `1_0.5`, blanks around a number, digits of other scripts and `Infinity`, so
that a damaged text would become a value.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from uuid import UUID

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
