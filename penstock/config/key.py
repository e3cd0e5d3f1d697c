"""Declarations of keys: each is an attribute of the settings that have it, and everything else follows from it.

Loading, checks, the reference and the corrections of unknown keys read the declarations. A key declares its section of
the reference as well: a section for each task of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, Self, TypeAlias, TypeVar, overload

from penstock.config.kinds import ValueKind


class Topic(Enum):
    """A section of docs/configuration.md: its title, and the text before its keys. The order is that of the page."""

    JOB = (
        "Name a job and give it a place",
        "With a second host, the root must be object storage or a shared folder: [deployment](deployment.md).",
    )
    SYSTEMS = (
        "Connect systems",
        (
            "A system is a place of streams, such as a Kafka cluster: [systems and streams](systems.md), "
            "[Kafka](kafka.md), [lakes](lakes.md), [databases](databases.md), [files](files.md), "
            "[schemas](schemas.md)."
        ),
    )
    INPUTS = (
        "Choose where inputs are read from",
        "These keys count where a checkpoint does not say it. [Startpoints](startpoints.md) move a job that has one.",
    )
    OUTPUTS = (
        "Set guarantees of outputs and the retention of streams",
        "[Exactly-once output](exactly-once.md) says what it costs and where it is possible.",
    )
    PARTITIONS = "Choose tasks and partitions", "[Systems and streams](systems.md) says how inputs become tasks."
    BATCHES = "Choose between throughput and latency", "[Latency](latency.md) measures these keys."
    TIME = (
        "Control event time, windows and timers",
        "See [event time](time.md), [windows](windows.md) and [timers](timers.md).",
    )
    COMMITS = (
        "Control commits and checkpoints",
        "A commit makes state and positions durable as a checkpoint: [operations](operations.md).",
    )
    STORES = (
        "Choose stores and limit their memory",
        "See [stores](stores.md), and [deployment](deployment.md) for the memory of a container.",
    )
    BACKUPS = "Choose where state is backed up", "[State backends](state-backends.md) compares them."
    CHANGELOGS = "Tune changelog streams", "These keys count with the [backend `changelog-stream`](state-backends.md)."
    REFERENCE_DATA = "Keep reference data", "See [side inputs](side-inputs.md) and [pushed tables](pushed-tables.md)."
    STOPS = "Control starts, drains and stops", "See [startpoints](startpoints.md) and [drains](drain.md)."
    FAILURES = "Control failures and retries", "[Operations](operations.md) says what ends a job and what does not."
    STANDBYS = "Restart quickly", "See [standbys](standbys.md)."
    MONITORING = "Watch a job", "See [operations](operations.md), [dashboard](dashboard.md) and [metrics](metrics.md)."
    SECURITY = (
        "Protect a job",
        (
            "[SECURITY.md](../SECURITY.md) says against whom. The section before has the tokens of the dashboard and "
            "of metrics."
        ),
    )
    SPARK = "Pass settings to Spark", "See [clusters](clusters.md) and [Kubernetes](kubernetes.md)."

    def __init__(self, title: str, text: str) -> None:
        self.title = title
        self.text = text


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Source: TypeAlias = Literal["Samza", "Penstock", "Spark"]


@dataclass(frozen=True, slots=True)
class AbsentDefault:
    """In place of a default: without a value, the setting is None, which means `meaning`."""

    meaning: str


@dataclass(frozen=True, slots=True)
class DerivedDefault(Generic[T_co]):
    """In place of a default: without a value, `value` makes the setting from the other settings, as `meaning` says."""

    meaning: str
    value: Callable[[Any], T_co]


@dataclass(frozen=True, eq=False)
class Key(Generic[T]):
    """One declared key. `name` holds at most one placeholder in angle brackets, which may stand for dots too; only
    `systems.<name>.<option>` has two, which are one subject.

    The attribute is the key in the class of the settings, and the key's value in an instance.
    """

    name: str
    topic: Topic
    kind: ValueKind[Any]
    otherwise: str | Key[Any] | AbsentDefault | DerivedDefault[Any]
    description: str
    source: Source

    @overload
    def __get__(self, settings: Key[Any] | None, owner: type[Any]) -> Self: ...  # a key as an attribute of another
    @overload
    def __get__(self, settings: Settings, owner: type[Any]) -> T: ...
    def __get__(self, settings: object, owner: type[Any]) -> Any:
        return settings.value(self) if isinstance(settings, Settings) else self

    def __set__(self, settings: Settings, value: NoReturn) -> NoReturn:
        raise AttributeError(f"`{self.name}` cannot be changed")

    @property
    def default(self) -> str | None:
        """The default as a user would write it. `<home>` is a placeholder for Penstock's home."""
        return self.otherwise if isinstance(self.otherwise, str) else None

    @property
    def fallback(self) -> AnyKey | None:
        """The key that counts if this one is not set."""
        return self.otherwise if isinstance(self.otherwise, Key) else None

    @property
    def unset(self) -> str:
        """The meaning of no value; empty if there is a default or a fallback."""
        return self.otherwise.meaning if isinstance(self.otherwise, (AbsentDefault, DerivedDefault)) else ""

    @cached_property
    def prefix(self) -> str:
        """The part before the placeholder; the whole name if there is none."""
        return self.name.partition("<")[0]

    @cached_property
    def suffix(self) -> str:
        """The part after the placeholder, with its leading dot."""
        rest = self.name.partition(">")[2]
        return "" if "<" in rest else rest

    @cached_property
    def is_pattern(self) -> bool:
        return "<" in self.name

    def full(self, subject: str = "") -> str:
        return f"{self.prefix}{subject}{self.suffix}" if self.is_pattern else self.name


AnyKey: TypeAlias = Key[Any]


@overload
def key(
    name: str,
    topic: Topic,
    kind: ValueKind[T],
    otherwise: str | Key[T] | DerivedDefault[T],
    description: str,
    source: Source = "Penstock",
) -> Key[T]: ...
@overload
def key(
    name: str,
    topic: Topic,
    kind: ValueKind[T],
    otherwise: AbsentDefault | Key[T | None],
    description: str,
    source: Source = "Penstock",
) -> Key[T | None]: ...
def key(name: str, topic: Topic, kind: Any, otherwise: Any, description: str, source: Source = "Penstock") -> AnyKey:
    """Declare a key.

    `topic` is its section of the reference. `otherwise` counts if it is not given: a default, another key,
    `AbsentDefault` or `DerivedDefault`.
    """
    return Key(name, topic, kind, otherwise, description, source)


@dataclass(frozen=True, slots=True)
class ResolvedValues:
    """The given values by flat key, and the home that defaults refer to."""

    home: Path
    values: Mapping[str, object] = field(repr=False)

    def find(self, key: AnyKey, subject: str = "") -> Any:
        """The value that holds for a key: given, of its fallback, or its default; None if there is none."""
        given = self.values.get(key.full(subject))
        if given is not None:
            return given
        if key.fallback is not None:
            return self.find(key.fallback, subject)
        return None if key.default is None else key.kind.read(key.default.replace("<home>", str(self.home)))


@dataclass(frozen=True)
class Settings:
    """A group of keys with their values. `subject` replaces the placeholder in their names."""

    resolved: ResolvedValues
    subject: str = ""

    def value(self, key: AnyKey) -> Any:
        found = self.resolved.find(key, self.subject)
        while found is None and key.fallback is not None:
            key = key.fallback
        return key.otherwise.value(self) if found is None and isinstance(key.otherwise, DerivedDefault) else found

    def put(self, key: Key[T], value: T) -> Self:
        """The same settings with another value of a key."""
        values = {**self.resolved.values, key.full(self.subject): value}
        return replace(self, resolved=replace(self.resolved, values=values))
