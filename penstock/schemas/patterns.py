"""Searches of regular expressions in texts of messages, in a time that does not explode with the text.

Python's `re` tries all ways in which a text may match: for `^(a+)+$` these double with each character. So it gets texts
that are short for their expression. For others there is RE2, which Arrow has: it takes a text in one pass, but knows no
lookarounds and no references back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

Search: TypeAlias = Callable[[str], bool]

_STEPS: Final = 10_000_000
"""The most that `re` may take: about a tenth of a second."""
_TOKEN = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)|\[\^?\]?|\(\?P?[^)]?|\{\d*,?\d*\}|.", re.DOTALL
)
_VARIES = re.compile(r"[*+]|\{\d*,\d*\}")
_REPEATS = re.compile(r"[*+]|\{\d*,?\d*\}")
_FEW_OPTIONAL: Final = 8
_ENDS: Final = {"$": r"(?:\n?\z)", r"\Z": r"\z"}
_SPACE = r"\s\x0b\x1c-\x1f\x{85}\p{Z}"
_CLASSES: Final = {r"\d": r"\p{Nd}", r"\w": r"\p{L}\p{N}_", r"\s": _SPACE}
"""The classes of `re`, which has all scripts in them, as RE2 writes them within brackets."""


@lru_cache(maxsize=256)
def search_of(pattern: str) -> Search:
    """A function that says whether the expression is found in a text. It raises ValueError for a text that is too long,
    if RE2 does not take the expression.

    Raises:
        ValueError: it is no regular expression, or one for which a short text may take any time.

    Example:
        >>> search_of("^(a+)+$")("a" * 1000 + "!")
        False
    """
    try:
        found = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it is no regular expression of Python: {error}") from None
    most, in_one_pass = longest(pattern), _in_one_pass(pattern)
    if in_one_pass is None and not most:
        raise ValueError(
            "it repeats a group that repeats something or has alternatives, so a short text may take any time. Leave "
            "out the repetition in the group, or what RE2 does not know: lookarounds, references back, `\\b`"
        )

    def search(text: str) -> bool:
        if len(text) <= most:
            return found(text) is not None
        if in_one_pass is None:
            raise ValueError(f"a text of {len(text):,} characters is too long for `{pattern}`: at most {most:,}")
        return in_one_pass(text)

    return search


def longest(pattern: str) -> int:
    """The longest text that `re` gets: 0 if the expression repeats a group that repeats something or has alternatives,
    for which the work doubles with each character. Otherwise the work is a power of the length."""
    varies = [False]  # each open group, and what is around all of them
    repeats, optional, anchored = 0, 0, pattern.startswith("^")
    before, closed = "", False
    for part, place in _tokens(pattern):
        if place is not _Place.OUT:
            before = ""
            continue
        if part.startswith("("):
            varies.append(False)
        elif part == ")" and len(varies) > 1:
            closed = varies.pop()
            varies[-1] = varies[-1] or closed
        elif part == "|":
            anchored = anchored and len(varies) > 1
            varies[-1] = True
        elif before == ")" and closed and _REPEATS.fullmatch(part):
            return 0
        elif part == "?" or _VARIES.fullmatch(part):
            optional += part == "?"
            repeats += part != "?"
            varies[-1] = True
        before = part
    power = repeats + max(0, optional - _FEW_OPTIONAL) + (not anchored)
    return int(_STEPS ** (1 / max(1, power)))


class _Place(Enum):
    """Where a part of an expression is."""

    OUT = 1
    OPENS = 2
    WITHIN = 3
    """Brackets."""


def _tokens(pattern: str) -> Iterator[tuple[str, _Place]]:
    within = False
    for match in _TOKEN.finditer(pattern):
        part = match[0]
        if not within:
            within = part[0] == "["
            yield part, _Place.OPENS if within else _Place.OUT
            continue
        for each in [part] if part[0] == "\\" else part:  # nothing else has more than one character there
            yield each, _Place.WITHIN if within else _Place.OUT
            within = within and each != "]"


def _in_one_pass(pattern: str) -> Search | None:
    """The search by RE2; None if it does not take the expression."""
    import pyarrow as pa  # late: few expressions need it
    import pyarrow.compute as pc

    translated = _translated(pattern)
    if translated is None:
        return None
    try:
        pc.match_substring_regex(pa.scalar(""), translated)
    except pa.ArrowInvalid:
        return None
    return lambda text: bool(pc.match_substring_regex(pa.scalar(text), translated).as_py())


def _translated(pattern: str) -> str | None:
    """The expression for RE2, with the meaning that it has for `re`; None if there is none."""
    made: list[str] = []
    for part, place in _tokens(pattern):
        within = place is not _Place.OUT
        if part.startswith("(?") and part not in ("(?:", "(?P<"):
            return None
        if part in (r"\b", r"\B") or (within and part in (r"\D", r"\W", r"\S")):
            return None
        if (members := _CLASSES.get(part.lower())) is not None:
            made.append(members if within else f"[{'' if part.islower() else '^'}{members}]")
        elif part[:2] in (r"\u", r"\U"):
            made.append(f"\\x{{{part[2:]}}}")
        elif place is _Place.WITHIN and part == "[":
            made.append(r"\[")
        elif not within and part in _ENDS:
            made.append(_ENDS[part])
        elif not within and part.startswith("{,"):
            made.append(f"{{0{part[1:]}")
        else:
            made.append(part)
    return "".join(made)
