"""Durations and sizes as texts, such as `5min` and `64MB`: a whole number and a unit. One grammar for all of them, and
what was meant by a text that is none. Durations, and other whole numbers, that applications declare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import TypeAlias

from penstock.errors import ConfigError

_WHOLE = re.compile(r"([+-]?[0-9]{1,19}) ?([A-Za-z]+)")
_PART = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)[ _]?([A-Za-zµ]+)(?: and |,? ?)")
_ISO = re.compile(r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.IGNORECASE)
_ISO_UNITS = ("d", "h", "min", "s")


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one quantity.

    Example:
        >>> DURATIONS.read("5min"), DURATIONS.read("5m"), DURATIONS.meant("5m"), DURATIONS.meant("1h30m")
        (300000, None, '5min', '90min')
        >>> SIZES.read("64MB"), SIZES.meant("0.5 G")
        (67108864, '512MB')
    """

    factors: Mapping[str, int]
    """Unit → how many of the smallest one it has."""
    others: Mapping[str, str]
    """Words that people write elsewhere, in lower case → the unit."""

    def read(self, text: str) -> int | None:
        """The number in the smallest unit; None if the text is not a whole number with a unit. Case does not count."""
        found = _WHOLE.fullmatch(text.strip())
        if found is None:
            return None
        factor = self._factor(found[2])
        return None if factor is None else int(found[1]) * factor

    def meant(self, text: str) -> str | None:
        """The text to write for what was meant; None if that is not known, or nothing is wrong with the unit."""
        text = text.strip()
        if self.read(text) is not None or (parts := list(self._parts(text))) == []:
            return None
        total = sum((Fraction(number) * factor for number, factor in parts), Fraction(0))
        if total.denominator != 1 or total <= 0:
            return None
        unit = next(
            unit
            for unit in sorted(self.factors, key=self.factors.__getitem__, reverse=True)
            if total % self.factors[unit] == 0
        )
        return f"{total // self.factors[unit]}{unit}"

    def hint(self, text: str) -> str:
        """`meant` as a question at the end of a message; empty if it is not known."""
        found = self.meant(text)
        return "" if found is None else f"did you mean `{found}`?"

    def _parts(self, text: str) -> Iterator[tuple[str, int]]:
        """Pairs of a number and a factor that make up the whole text; nothing if they do not."""
        if (iso := _ISO.fullmatch(text)) is not None and any(iso.groups()):
            named = [(number, unit) for number, unit in zip(iso.groups(), _ISO_UNITS, strict=True) if number]
        else:
            named, at = [], 0
            while at < len(text):
                if (found := _PART.match(text, at)) is None:
                    return
                named.append((found[1], found[2]))
                at = found.end()
        factors = [self._factor(self.others.get(unit.lower(), unit)) for _, unit in named]
        if None not in factors:
            yield from ((number, factor) for (number, _), factor in zip(named, factors, strict=True) if factor)

    def _factor(self, unit: str) -> int | None:
        return next((factor for name, factor in self.factors.items() if name.lower() == unit.lower()), None)


def _spelled(words: Mapping[str, str]) -> dict[str, str]:
    return {word: unit for unit, given in words.items() for word in given.split()}


DURATIONS = Units(
    {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000},
    _spelled(
        {
            "ms": "msec msecs milli millis millisecond milliseconds",
            "s": "sec secs second seconds",
            "min": "m mins minute minutes",
            "h": "hr hrs hour hours",
            "d": "day days",
        }
    ),
)
"""In milliseconds."""
SIZES = Units(
    {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40},
    _spelled(
        {
            "B": "byte bytes",
            "KB": "k kib kilobyte kilobytes kbytes",
            "MB": "m mib megabyte megabytes mbytes",
            "GB": "g gib gigabyte gigabytes gbytes",
            "TB": "t tib terabyte terabytes tbytes",
        }
    ),
)
"""In bytes. The units are powers of 1024."""


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
