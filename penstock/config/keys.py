"""Finds the declaration of a key, and for a mistaken key the nearest one that exists."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from penstock.api.ssp import SystemStream
from penstock.base.plugins import OUTSIDE_WINGS, from_outside
from penstock.config.foreign import foreign
from penstock.config.key import AbsentDefault, AnyKey, DerivedDefault, Key, Settings, Topic
from penstock.config.kinds import ValueKind
from penstock.config.settings import KEYS, OtherSettings, StoreSettings, SystemKeys
from penstock.errors import ConfigError

_APPLICATION, _SPARK = OtherSettings.application, OtherSettings.spark
_NO_OPTION = re.compile(
    r"systems\.[^.]+(\.samza(\..*)?|\.streams\..+\.samza\..+|\.default(\.stream(\.samza(\..*)?)?)?)?\.?"
)
"""Keys of a system that are not options: they would be Samza's, for all systems."""
_RUN_ID = re.compile(r"app[._-]*run[._-]*id", re.IGNORECASE)
_NEAR = 0.75
_SAME_GROUP = 0.8
_SOME_WORDS, _MOST_WORDS = 0.4, 0.5
_TELLING = 8
"""The most keys that have a word which tells a key from others."""
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


@cache
def describe() -> tuple[AnyKey, ...]:
    """Every key: Penstock's in the order of their declaration, then those of wings from outside. Raises ConfigError if
    such a wing is refused."""
    return (*KEYS, *(key for wing in from_outside(OUTSIDE_WINGS).values() for key in keys_of(wing.keys)))


def keys_of(group: type[Settings] | None) -> Iterator[AnyKey]:
    """The keys that a class of settings declares itself. None: there is no such class."""
    return (value for value in vars(group or Settings).values() if isinstance(value, Key))


def faults_of(group: object, others: Mapping[AnyKey, str]) -> Iterator[str]:
    """The faults of the keys that a wing declares, each as it follows the wing's name. `others`: the keys that there
    are already, each with its owner."""
    if not (isinstance(group, type) and issubclass(group, Settings)):
        yield f"has {group!r} as its `keys`, which is no subclass of Settings"
        return
    taken = dict(others)
    for key in keys_of(group):
        for fault in (_fault_of_kind(key), _fault_of_default(key)):
            if fault:
                yield f"declares the key `{key.name}` with {fault}"
        for other, owner in taken.items():
            if _meets(key, other):
                yield (
                    f"declares the key `{key.name}`, which cannot be told from `{other.name}` of {owner}: give it "
                    "another name"
                )
        taken[key] = "the same wing"


def _fault_of_kind(key: AnyKey) -> str:
    for value, kind, such in ((key.kind, ValueKind, "`Number()`"), (key.topic, Topic, "`Topic.JOB`")):
        if not isinstance(value, kind):
            return f"{value!r}, which is no {kind.__name__}, such as {such}"
    return ""


def _fault_of_default(key: AnyKey) -> str:
    if isinstance(key.otherwise, (Key, AbsentDefault, DerivedDefault)) or not isinstance(key.kind, ValueKind):
        return ""
    if key.default is None:
        return f"the default {key.otherwise!r}: a default is the text that a user would write"
    try:
        key.kind.read(key.default.replace("<home>", "/"))
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        return f"the default `{key.default}`{reason}, which is not {key.kind.expected}"
    return ""


def _meets(one: AnyKey, other: AnyKey) -> bool:
    """True if a text could be meant for both keys."""
    return any(_stands_for(a, b.full("x")) for a, b in ((one, other), (other, one)))


def _stands_for(key: AnyKey, text: str) -> bool:
    """True if a text is the key, with any name in the place of its placeholder."""
    subject = text[len(key.prefix) : len(text) - len(key.suffix)]
    return text == key.name or (key.is_pattern and subject != "" and text == key.full(subject))


@cache
def exact() -> dict[str, AnyKey]:
    """The keys without a placeholder, by name."""
    return {key.name: key for key in describe() if not key.is_pattern}


@cache
def patterns() -> list[AnyKey]:
    """The keys with a placeholder, those with the longest ending first."""
    return sorted((key for key in describe() if key.is_pattern), key=lambda key: len(key.suffix), reverse=True)


@lru_cache(1024)
def find(text: str) -> Match | None:
    """The declaration of a key, or None. Names may contain dots: the longest known ending wins."""
    if text in exact():
        return Match(exact()[text], "")
    for key in patterns():
        subject = text[len(key.prefix) : len(text) - len(key.suffix)]
        if _stands_for(key, text) and not _is_other(key, subject, text):
            return Match(key, subject)
    return None


def _is_other(key: AnyKey, subject: str, text: str) -> bool:
    """True if a text has the form of the key and is not meant for it."""
    if key is SystemKeys.option:
        return _NO_OPTION.fullmatch(text) is not None
    if key is SystemKeys.path:
        return "." in subject  # an option, such as one of a client
    if key is StoreSettings.factory:
        return foreign(text) is not None
    return key in (_APPLICATION, _SPARK) and (foreign(text) is not None or _RUN_ID.fullmatch(text) is not None)


def fault(match: Match) -> str:
    """The fault of the name inside the key; empty if there is none."""
    prefix = match.key.prefix
    if prefix == "streams.":
        try:
            SystemStream.parse(match.subject)
        except ConfigError as error:
            return str(error)
    pattern, rule = _NAMES.get(prefix, ("", ""))
    name = match.subject.partition(".")[0] if match.key is SystemKeys.option else match.subject
    return rule if pattern and not re.fullmatch(pattern, name) else ""


def is_section(text: str) -> bool:
    """True if known keys lie below this one, as below `job` or `stores.aircraft`."""
    if any(key.name.startswith(f"{text}.") for key in describe()):
        return True
    return any(text.startswith(key.prefix) and "." not in text[len(key.prefix) :] for key in patterns())


def nearest(text: str) -> str | None:
    """The known key most like this one, with its names; None if none is like it."""
    wanted = _normal(text)
    best, score = None, _NEAR
    for candidate in _candidates(text):
        ratio = _alike(wanted, _normal(candidate))
        if ratio > score:
            best, score = candidate, ratio
    known = [word for word in wanted.split(".") if 0 < _uses()[word] <= _TELLING]
    rarest = min(known, key=_uses().__getitem__, default=None)
    if rarest is None or (best is not None and rarest in _normal(best).split(".")):
        return best
    key, share = _with_word(rarest, set(wanted.split(".")))
    return key if share >= (_SOME_WORDS if best else _MOST_WORDS) else best


def _with_word(word: str, words: set[str]) -> tuple[str, float]:
    """The key with this word that has the most words of a text, and their share: `task.commit.ms` for
    `job.commit.interval.ms`. By letters alone, `job.batch.interval.ms` would be nearer."""
    found = [(len(words & own) / len(words | own), key) for key, own in _words().items() if word in own]
    share, key = max(found)
    return key, share


@cache
def _words() -> dict[str, set[str]]:
    return {key: set(_normal(key).split(".")) for key in exact()}


@cache
def _uses() -> Counter[str]:
    """Word → the number of keys that have it."""
    return Counter(word for words in _words().values() for word in words)


def _candidates(text: str) -> Iterator[str]:
    """Exact keys first; then every pattern, with each possible cut of the text as the name inside."""
    yield from exact()
    parts = text.split(".")
    for key in patterns():
        if key in (SystemKeys.option, _APPLICATION) or (key is _SPARK and not text.lower().startswith("spark")):
            continue  # any text would be like it
        if _alike(parts[0], key.prefix.partition(".")[0]) < _SAME_GROUP:
            continue  # the user's own words as the name would make it like the text
        ends = range(2, len(parts)) if key.suffix else [len(parts)]
        for end in ends:
            subject = ".".join(parts[1:end])
            ending = ".".join(parts[end:])
            if not subject or (key.prefix == "systems." and "." in subject):
                continue
            if not key.suffix or _alike(_normal(ending), _normal(key.suffix[1:])) > _NEAR:  # names alone prove nothing
                yield key.full(subject)


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _normal(text: str) -> str:
    return re.sub(r"[-_.]+", ".", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", ".", text)).lower()
