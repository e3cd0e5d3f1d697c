"""Texts for people and from people: counts, names and times as they are said, and durations and sizes.

A duration or a size is a whole number and a unit, as `5min` and `64MB`: one grammar for all of them, and what was meant
by a text that is none. Here are also durations, and other whole numbers, that applications declare.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, TypeAlias

from penstock.errors import ConfigError


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the plural where it needs one.

    Example:
        >>> counted(1, "message"), counted(1000, "entry"), counted(2, "key")
        ('1 message', '1,000 entries', '2 keys')
    """
    if count == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {many}"


def lag_text(lags: Iterable[tuple[int, str]]) -> str:
    """The backlog of inputs from pairs of number and unit: a number alone counts messages. Empty if there is none.

    Example:
        >>> lag_text([(1200, "message"), (2, "file"), (0, "message"), (1, "file")])
        '1,200 and 3 files'
    """
    units: Counter[str] = Counter()
    for lag, unit in lags:
        units[unit] += lag
    return " and ".join(f"{n:,}" if unit == "message" else counted(n, unit) for unit, n in units.items() if n)


def printable(data: bytes) -> str | None:
    """The data as UTF-8 text, or None if it is none or holds control characters other than white space.

    Example:
        >>> printable(b"text"), printable(bytes([0, 1]))
        ('text', None)
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if text.isprintable() or not any(unicodedata.category(char) == "Cc" and char not in "\n\r\t" for char in text):
        return text
    return None


def lone_surrogate(error: UnicodeEncodeError) -> str:
    """The reason why a text has no UTF-8, with its place in the text."""
    text, at = str(error.object), error.start
    shown = text if len(text) <= 60 else f"{text[max(0, at - 20) : at + 20]}"
    return (
        f"the text {shown!a} has no UTF-8: its character {at + 1} is half of a surrogate pair, "
        f"U+{ord(text[at]):04X}. Write it as text with errors='replace', or as bytes"
    )


def no_utf8(value: object) -> str | None:
    """The reason why a text in the value has no UTF-8; None if all have."""
    waiting: list[Any] = [value]
    for each in waiting:
        if isinstance(each, str):
            try:
                each.encode()
            except UnicodeEncodeError as error:
                return lone_surrogate(error)
        elif isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset | deque):
            waiting += each
        elif is_dataclass(each) and not isinstance(each, type):
            waiting += [getattr(each, field.name, None) for field in fields(each)]
        elif (names := getattr(type(each), "__struct_fields__", None)) is not None:
            waiting += [getattr(each, name, None) for name in names]
    return None


def escaped(text: str, keep: str = "\n\t") -> str:
    """The text with what steers a terminal, or turns the direction of text around, as escapes.

    Args:
        text: any text, also one that a stranger wrote.
        keep: control characters that stay.

    Example:
        >>> escaped(chr(27) + "[2Jcafé")
        '\\\\x1b[2Jcafé'
    """
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if char not in keep and _steers(char) else char for char in text
    )


def _steers(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Cs"} or unicodedata.bidirectional(char) in _DIRECTIONS


_DIRECTIONS = frozenset({"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"})


def listed(items: Sequence[str]) -> str:
    """The items as a list in a sentence.

    Example:
        >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
        ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def owned_stream(owner: str) -> str:
    """The kind of a stream that has this owner on record.

    Example:
        >>> owned_stream("job counts-1 (uid 0123456789ab), store words")
        'a changelog'
    """
    return "an intermediate stream" if owner.endswith("intermediate stream") else "a changelog"


def argument(name: str, value: str | list[str] | None = None) -> str:
    """An argument of a function, for a message that says what to give: `` `with_state="keep"` ``, `` `operator=...` ``.
    The command line prints its option instead (`penstock.cli.shared.errors`).

    Args:
        name: the argument.
        value: what to give; None if the reader chooses it.

    Example:
        >>> argument("with_state", "keep"), argument("operator")
        ('`with_state="keep"`', '`operator=...`')
    """
    if value is None:
        return f"`{name}=...`"
    values = ", ".join(f'"{each}"' for each in ([value] if isinstance(value, str) else value))
    return f"`{name}={values}`" if isinstance(value, str) else f"`{name}=[{values}]`"


def flag(name: str) -> str:
    """As `argument`, for one that is switched on: `` `clamp=True` ``."""
    return f"`{name}=True`"


def size_text(count: int) -> str:
    """A size for people, in powers of 1024 as in the configuration.

    Example:
        >>> size_text(512), size_text(3 << 19)
        ('512 B', '1.5 MB')
    """
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def duration_text(duration_ms: int) -> str:
    """A duration for people: in seconds, minutes, hours or days, whichever fits.

    Example:
        >>> duration_text(3_500), duration_text(7_200_000), duration_text(95_403_376_500)
        ('3.5 s', '120.0 min', '1,104.2 d')
    """
    value = duration_ms / 1000
    for unit, longest, size in (("s", 600, 60), ("min", 600, 60), ("h", 72, 24)):
        if abs(value) < longest:
            return f"{value:,.1f} {unit}"
        value /= size
    return f"{value:,.1f} d"


def utc_text(epoch_ms: int) -> str:
    """A time for people, in UTC; the number itself if it is beyond the calendar.

    Example:
        >>> utc_text(1_700_000_000_000)
        '2023-11-14T22:13:20.000Z'
    """
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)
    except OverflowError:
        return f"{epoch_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


_SHOWN = 40


def first_characters(marker: str) -> str:
    """A marker of an unknown form, for people: at most 40 characters.

    Args:
        marker: the marker.

    Example:
        >>> first_characters("7:12")
        '7:12'
    """
    return marker if len(marker) <= _SHOWN else f"{marker[: _SHOWN - 1]}…"


def json_text(value: object) -> str:
    """A value of JSON on one line. A text that can be printed stands without quotes.

    Example:
        >>> json_text("N1"), json_text({"miles": 5}), json_text("")
        ('N1', '{"miles": 5}', '""')
    """
    plain = isinstance(value, str) and value.isprintable() and value
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
