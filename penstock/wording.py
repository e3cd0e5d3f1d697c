"""Numbers, sizes, times and lists for people."""

from __future__ import annotations

import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any


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
        text: any text, of whoever wrote it.
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
