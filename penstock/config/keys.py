"""Finds the declaration of a key, and for a mistaken key the nearest one that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.api.ssp import SystemStream
from penstock.config import samza
from penstock.config.table import APPLICATION, KEYS, RUN_ID, SPARK, SYSTEM_OPTION, SYSTEM_PATH, SYSTEM_TYPE, AnyKey
from penstock.errors import ConfigError

_EXACT = {key.name: key for key in KEYS if not key.is_pattern}
_PATTERNS = sorted((key for key in KEYS if key.is_pattern), key=lambda key: len(key.suffix), reverse=True)
_NO_OPTION = re.compile(r"systems\.[^.]+(\.samza(\..*)?|\.default(\.stream(\.samza(\..*)?)?)?)?\.?")
"""Keys of a system that are not options: they would be Samza's, for all systems."""
_OF_A_CLIENT = re.compile(r"systems\.[^.]+\.(consumer|producer|default\.stream)\..+\.(type|path)")
"""Options of a system that end as keys of every system do, such as `ssl.truststore.type`."""
_NEAR = 0.6
_MISTAKES = re.compile(r"stores\.(rocksdb|(.+\.)?(backup|restore|side\.inputs))\.factory")
"""Keys that have a store's form but are more likely a mistake for a key of all stores, or one of Samza's."""
_NOT_MEANT = re.compile(r"stores\..+\.side\.factory")
"""Not offered as a correction for a side-input key."""
_NAMES = {
    "stores.": (
        r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        ("a store's name is made of A-Za-z0-9_.-, not beginning with a dot or dash"),
    ),
    "systems.": (r"[A-Za-z0-9_-]+", "a system's name is made of A-Za-z0-9_- and has no dots"),
}


@dataclass(frozen=True, slots=True)
class Match:
    """A key found in the table; `subject` replaces the placeholder."""

    key: AnyKey
    subject: str


def find(text: str) -> Match | None:
    """The declaration of a key, or None. Names may contain dots: the longest known ending wins."""
    if text in _EXACT:
        return Match(_EXACT[text], "")
    for key in _PATTERNS:
        subject = text[len(key.prefix) : len(text) - len(key.suffix)]
        if subject and text == key.full(subject) and not _MISTAKES.fullmatch(text):
            if key is SYSTEM_OPTION and _NO_OPTION.fullmatch(text):
                continue
            if key in (SYSTEM_TYPE, SYSTEM_PATH) and _OF_A_CLIENT.fullmatch(text):
                continue
            if key in (APPLICATION, SPARK) and samza.answer(text) is not None:
                continue  # any other text would do
            if key is APPLICATION and _normal(text).replace(".", "") == _normal(RUN_ID.name).replace(".", ""):
                continue
            return Match(key, subject)
    return None


def fault(match: Match) -> str:
    """The fault of the name inside the key; empty if there is none."""
    prefix = match.key.prefix
    if prefix == "streams.":
        try:
            SystemStream.parse(match.subject)
        except ConfigError as error:
            return str(error)
    pattern, rule = _NAMES.get(prefix, ("", ""))
    name = match.subject.partition(".")[0] if match.key is SYSTEM_OPTION else match.subject
    return rule if pattern and not re.fullmatch(pattern, name) else ""


def is_section(text: str) -> bool:
    """True if known keys lie below this one, as below `job` or `stores.aircraft`."""
    if any(key.name.startswith(f"{text}.") for key in KEYS):
        return True
    return any(text.startswith(key.prefix) and "." not in text[len(key.prefix) :] for key in _PATTERNS)


def nearest(text: str) -> str | None:
    """The known key most like this one, with its names; None if none is like it."""
    wanted = _normal(text)
    best, score = None, _NEAR
    for candidate in _candidates(text):
        ratio = difflib.SequenceMatcher(None, wanted, _normal(candidate), autojunk=False).ratio()
        if ratio > score:
            best, score = candidate, ratio
    return best


def _candidates(text: str) -> Iterator[str]:
    """Exact keys first; then every pattern, with each possible cut of the text as the name inside."""
    yield from _EXACT
    parts = text.split(".")
    for key in _PATTERNS:
        if key in (SYSTEM_OPTION, APPLICATION) or (key is SPARK and not text.lower().startswith("spark")):
            continue  # any text would be like it
        ends = range(2, len(parts)) if key.suffix else [len(parts)]
        for end in ends:
            subject = ".".join(parts[1:end])
            if subject and not (_MISTAKES.fullmatch(found := key.full(subject)) or _NOT_MEANT.fullmatch(found)):
                yield found


def _normal(text: str) -> str:
    return re.sub(r"[-_.]+", ".", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", ".", text)).lower()
