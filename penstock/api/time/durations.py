"""Checks of the whole numbers that applications declare: durations, sizes and counts."""

from __future__ import annotations

from penstock.errors import ConfigError

_MOST = 2**60


def whole_number(what: str, given: object, unit: str, least: int = 1) -> int:
    """Return the given number, if it is a whole number of the unit.

    Args:
        what: names the argument, as "gap_ms".
        given: the number from the application.
        unit: the unit, as "milliseconds".
        least: the least that is allowed.

    Raises:
        ConfigError: it is another type, or out of range.
    """
    if type(given) is not int or not least <= given <= _MOST:
        raise ConfigError(f"{what} is a whole number of {unit}, {least} or more (at most 2^60), not {given!r}")
    return given
