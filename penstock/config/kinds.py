"""Kinds of configuration values: one small class for each, which reads and writes its text."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeAlias, TypeVar
from urllib.parse import urlsplit

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import DURATIONS, SIZES, Units
from penstock.errors import ConfigError

Raw: TypeAlias = str | tuple[str, ...]
"""A value as every source delivers it: text, or a list of texts."""

T = TypeVar("T")
S = TypeVar("S", bound=str)

MAX_MS = 36525 * 24 * 3600 * 1000
"""A hundred years: longer waits do not fit what operating systems accept as a timeout."""


class RefusedError(ValueError):
    """A value is not of its kind. A text, if there is one, adds to the kind's `expected`."""


class ValueKind(ABC, Generic[T]):
    """Reads and writes the values of a key. Stateless."""

    unit: ClassVar[str] = ""

    @property
    @abstractmethod
    def expected(self) -> str:
        """A description of valid values, for error messages and the reference."""

    @abstractmethod
    def read(self, text: str) -> T:
        """The value of the text. Raises RefusedError, with the reason unless `expected` says enough."""

    def parse(self, raw: Raw) -> T:
        """The value of a source's text or list; surrounding blanks do not count. Raises RefusedError."""
        if isinstance(raw, tuple):
            raise RefusedError("a list")
        return self.read(raw.strip())

    def text(self, value: T) -> str:
        """The text `parse` reads back as this value."""
        return str(value)


class Verbatim(ValueKind[str]):
    """Any text, untouched."""

    expected = "text"

    def parse(self, raw: Raw) -> str:
        if isinstance(raw, tuple):
            raise RefusedError("a list")
        return raw

    def read(self, text: str) -> str:
        return text


class Passphrase(Verbatim):
    """A secret text that nobody can guess."""

    expected = "a secret of at least 32 characters, such as `openssl rand -hex 32` prints"

    def parse(self, raw: Raw) -> str:
        text = super().parse(raw)
        if len(text) < 32:
            raise RefusedError(f"{len(text)} characters")
        return text


@dataclass(frozen=True)
class Word(ValueKind[str]):
    """A name that is safe in paths, URLs and keys: at most `longest` of `characters`, no dot or dash at its start."""

    characters: str
    longest: int

    @property
    def expected(self) -> str:
        return f"1 to {self.longest} characters out of `{self.characters}`, not beginning with a dot or dash"

    def read(self, text: str) -> str:
        if not re.fullmatch(f"(?![.-])[{self.characters}]{{1,{self.longest}}}", text):
            raise RefusedError
        return text


@dataclass(frozen=True)
class OneOf(ValueKind[S]):
    """One of a few words."""

    choices: tuple[S, ...]

    @property
    def expected(self) -> str:
        return " or ".join(f"`{choice}`" for choice in self.choices)

    def read(self, text: str) -> S:
        for choice in self.choices:
            if choice == text:
                return choice
        raise RefusedError


class Flag(ValueKind[bool]):
    """Yes or no."""

    expected = "`true` or `false`"

    def read(self, text: str) -> bool:
        if text.lower() not in {"true", "false"}:
            raise RefusedError
        return text.lower() == "true"

    def text(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Number(ValueKind[int]):
    """An integer within bounds (both inclusive); subclasses add suffixes for larger units."""

    minimum: int | None = None
    maximum: int | None = None

    noun: ClassVar[str] = "an integer"
    forms: ClassVar[str] = ""
    factors: ClassVar[Mapping[str, int]] = {}
    units: ClassVar[Units | None] = None

    @property
    def expected(self) -> str:
        low = "" if self.minimum is None else f", at least {self.minimum}"
        high = "" if self.maximum is None else f", at most {self.maximum}"
        return self.noun + self.forms + low + high

    def read(self, text: str) -> int:
        found = re.fullmatch(r"([+-]?[0-9]{1,18}) ?([A-Za-z]*)", text)
        if not found:
            raise RefusedError(self._hint(text))
        suffix = found[2].lower()
        if suffix and suffix not in self.factors:
            unknown = f"unknown unit `{found[2]}`" if self.factors else ""
            raise RefusedError("; ".join(filter(None, (unknown, self._hint(text)))))
        value = int(found[1]) * (self.factors[suffix] if suffix else 1)
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            raise RefusedError("out of range")
        return value

    def _hint(self, text: str) -> str:
        return "" if self.units is None else self.units.hint(text)


@dataclass(frozen=True)
class Millis(Number):
    """A duration in milliseconds."""

    maximum: int | None = MAX_MS

    unit = "ms"
    noun = "a duration: an integer number of milliseconds"
    forms = ", or a form such as `500ms`, `10s`, `5min`, `2h`, `1d`"
    factors = DURATIONS.factors
    units = DURATIONS


@dataclass(frozen=True)
class ByteSize(Number):
    """A size in bytes. KB, MB and GB are powers of 1024, as they are for Spark and RocksDB."""

    unit = "bytes"
    noun = "a size: an integer number of bytes"
    forms = ", or a form such as `512KB`, `64MB`, `2GB` (powers of 1024)"
    factors = {"b": 1} | {
        prefix + ending: 1024**power for power, prefix in enumerate("kmgt", start=1) for ending in ("b", "ib")
    }
    units = SIZES


class ListOf(ValueKind[tuple[T, ...]]):
    """A list, in order and without repetition, of at least one item."""

    noun: ClassVar[str] = "a name"

    @abstractmethod
    def item(self, text: str) -> T:
        """The value of one item. Raises RefusedError."""

    def parse(self, raw: Raw) -> tuple[T, ...]:
        return self.checked([self.item(each.strip()) for each in (raw.split(",") if isinstance(raw, str) else raw)])

    def read(self, text: str) -> tuple[T, ...]:
        return self.parse(text)

    def text(self, value: tuple[T, ...]) -> str:
        return ",".join(map(str, value))

    def checked(self, items: Sequence[T]) -> tuple[T, ...]:
        if not items:
            raise RefusedError("an empty list")
        if len(set(items)) < len(items):
            raise RefusedError(f"{self.noun} is listed twice")
        return tuple(items)


@dataclass(frozen=True)
class Versions(ListOf[int]):
    """Some of the known version numbers."""

    known: tuple[int, ...]

    @property
    def expected(self) -> str:
        return f"a list, separated by commas, of one or more of: {', '.join(map(str, self.known))}"

    def item(self, text: str) -> int:
        for version in self.known:
            if str(version) == text:
                return version
        raise RefusedError(f"unknown: `{text}`" if text else "an empty name")


@dataclass(frozen=True)
class Factory(ValueKind[str]):
    """The factory of a part of a job: a short name, Samza's class name of the same, or `module:Class` for one's own."""

    known: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        return f"{' or '.join(f'`{name}`' for name in self.known)}, or your own as `module:Class`"

    def read(self, text: str) -> str:
        name = self.aliases.get(text, text)
        if name not in self.known and not is_own(name):
            raise RefusedError("")
        return name


@dataclass(frozen=True)
class Backends(ListOf[str]):
    """Names of state backends: short ones, Samza's class names of the same, or `module:Class` for one's own."""

    known: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        return f"a list, separated by commas, of: {', '.join(self.known)}, or your own as `module:Class`"

    def item(self, text: str) -> str:
        name = self.aliases.get(text, text)
        if name not in self.known and not is_own(name):
            raise RefusedError(f"unknown: `{name}`" if name else "an empty name")
        return name


def is_own(factory: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", factory) is not None


class LocalPath(ValueKind[Path]):
    """A path of this machine, made absolute against the working directory."""

    expected = "a path"

    def read(self, text: str) -> Path:
        if not text or "\0" in text:
            raise RefusedError
        if "://" in text:
            raise RefusedError("a URL")
        return absolute(text)


class Url(ValueKind[str]):
    """The URL of a place for objects. A plain path is taken as a `file:///` URL; no slash at the end."""

    expected = "a URL `file:///...`, `s3://...`, `gs://...`, `az://...`, `memory://...`, or a path"

    def read(self, text: str) -> str:
        if "://" not in text:
            return LocalPath().read(text).as_uri()
        url = urlsplit(text)
        if url.scheme not in {"file", "s3", "gs", "az", "memory"}:
            raise RefusedError(f"unknown scheme `{url.scheme}`")
        if url.query or url.fragment:
            raise RefusedError("a query or fragment has no meaning here")
        if url.scheme == "file" and (url.netloc or not url.path.startswith("/")):
            raise RefusedError("a file URL has three slashes")
        if url.scheme != "file" and not url.netloc:
            raise RefusedError("no bucket or name")
        return text.rstrip("/") if url.path.strip("/") or url.netloc else text


@dataclass(frozen=True)
class StreamName(ValueKind[SystemStream]):
    """A stream, `system.stream`. With a default system, a name without a dot is a stream of that system."""

    default_system: str = ""

    @property
    def expected(self) -> str:
        if self.default_system:
            return f"a stream `system.stream`, or the name of one of the system `{self.default_system}`"
        return "a stream `system.stream`, for example `local.flights`"

    def read(self, text: str) -> SystemStream:
        if self.default_system and text and "." not in text:
            return SystemStream(self.default_system, text)
        try:
            return SystemStream.parse(text)
        except ConfigError as error:
            raise RefusedError from error


class StreamNames(ListOf[SystemStream]):
    """Streams `system.stream`."""

    expected = "a list, separated by commas, of streams `system.stream`, for example `local.planes,local.gates`"
    noun = "a stream"

    def item(self, text: str) -> SystemStream:
        return StreamName().read(text)


class OwnFactory(ValueKind[str]):
    """A class of the user's."""

    expected = "a class, `module:Class`"

    def read(self, text: str) -> str:
        if not is_own(text):
            raise RefusedError
        return text


def absolute(path: str) -> Path:
    """The path from the root, `~` and `..` resolved, links kept."""
    return Path(os.path.abspath(Path(path).expanduser()))


_NUMBER = "([0-9]{1,9})"
_RANGE_FORM = re.compile(rf"([^#]+)#(?:{_NUMBER}|\[ *{_NUMBER} *- *{_NUMBER} *\])")


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Partitions `first` to `last` of a stream, both inclusive. Written as Samza does: `local.rates#0`,
    `local.rates#[0-3]`."""

    stream: SystemStream
    first: int
    last: int

    def __contains__(self, ssp: SystemStreamPartition) -> bool:
        return ssp.system_stream == self.stream and self.first <= ssp.partition <= self.last

    def __str__(self) -> str:
        numbers = f"{self.first}" if self.first == self.last else f"[{self.first}-{self.last}]"
        return f"{self.stream}#{numbers}"


class BroadcastInputs(ListOf[PartitionRange]):
    """Single partitions and ranges. A repeated entry counts once."""

    expected = "a list, separated by commas, of partitions: `system.stream#p`, or `system.stream#[first-last]`"

    def item(self, text: str) -> PartitionRange:
        match = _RANGE_FORM.fullmatch(text)
        if match is None:
            raise RefusedError(f"`{text}` is not a partition" if text else "an empty entry")
        try:
            stream = SystemStream.parse(match[1])
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        first, last = (int(match[2]),) * 2 if match[2] else (int(match[3]), int(match[4]))
        if first > last:
            raise RefusedError(f"`{text}` ends before it begins")
        return PartitionRange(stream, first, last)

    def checked(self, items: Sequence[PartitionRange]) -> tuple[PartitionRange, ...]:
        return super().checked(tuple(dict.fromkeys(items)))


_POLICY_FORM = re.compile(r"([1-9][0-9]{0,3})(?: *, *([0-9]{1,4})h)?(?: *, *([0-9]{1,4})d)?")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The newest `newest` (at least 1), then one an hour for `hours` hours, then one a day for `days` days."""

    newest: int
    hours: int = 0
    days: int = 0


class RetainedCheckpoints(ValueKind[RetentionPolicy]):
    """A number, optionally followed by hours and by days: `10,24h,7d`."""

    expected = "how many of the newest, then for how many hours one each, then for how many days: `10`, `10,24h,7d`"

    def parse(self, raw: Raw) -> RetentionPolicy:
        return self.read(raw.strip() if isinstance(raw, str) else ",".join(raw))

    def read(self, text: str) -> RetentionPolicy:
        match = _POLICY_FORM.fullmatch(text)
        if match is None:
            raise RefusedError("the newest one is always kept" if text.startswith("0") else "")
        return RetentionPolicy(int(match[1]), int(match[2] or 0), int(match[3] or 0))

    def text(self, value: RetentionPolicy) -> str:
        hours, days = f",{value.hours}h" if value.hours else "", f",{value.days}d" if value.days else ""
        return f"{value.newest}{hours}{days}"
