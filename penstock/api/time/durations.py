"""Durations, and other whole numbers that applications declare."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from penstock.errors import ConfigError
from penstock.quantities import DURATIONS

Duration: TypeAlias = int | str | timedelta
"""Milliseconds, a text such as "500ms", "10s", "5min", "2h" or "1d", or a timedelta."""

_MOST = 2**60
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds(what: str, given: object, least: int = 1, most: int = _MOST) -> int:
    """A duration in milliseconds.

    Args:
        what: names the argument, as "gap_ms".
        given: the duration from the application.
        least: the least that is allowed, in milliseconds.
        most: the most that is allowed.

    Raises:
        ConfigError: it is none, it has a part of a millisecond, or it is out of range.

    Example:
        >>> from datetime import timedelta
        >>> milliseconds("gap_ms", "5min"), milliseconds("gap_ms", timedelta(hours=1)), milliseconds("gap_ms", 20)
        (300000, 3600000, 20)
    """
    found = _milliseconds(given)
    if found is None or not least <= found <= most:
        at_most = "2^60" if most == _MOST else f"{most:,}"
        hint = f": {hint}" if isinstance(given, str) and (hint := DURATIONS.hint(given)) else ""
        raise ConfigError(
            f"{what} is a duration (milliseconds, a timedelta, or a text such as '10s': a whole number and "
            f"{', '.join(DURATIONS.factors)}) of {least} ms or more and at most {at_most} ms, not {given!r}{hint}"
        )
    return found


def _milliseconds(given: object) -> int | None:
    if type(given) is int:
        return given
    if isinstance(given, timedelta):
        whole, rest = divmod(given, _MILLISECOND)
        return None if rest else whole
    return DURATIONS.read(given) if isinstance(given, str) else None


def whole_number(what: str, given: object, unit: str, least: int = 1) -> int:
    """Return the given number, if it is a whole number of the unit.

    Args:
        what: names the argument, as "messages".
        given: the number from the application.
        unit: the unit, as "messages".
        least: the least that is allowed.

    Raises:
        ConfigError: it is another type, or out of range.
    """
    if type(given) is not int or not least <= given <= _MOST:
        raise ConfigError(f"{what} is a whole number of {unit}, {least} or more (at most 2^60), not {given!r}")
    return given
