"""The values of metrics at one moment, which are immutable and merge, and their form between processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


class MetricId(NamedTuple):
    """The name of a metric in a job."""

    source: str
    """The owner, as in Samza's snapshots: `job`, a task (`Partition 3`), or a container (`container 0-1`)."""
    group: str
    """The subject: `job`, `stage.1`, `store.totals`, `backend.blob`, `stream.local.clicks`, or `user.<group>`."""
    name: str


@dataclass(frozen=True, slots=True)
class CounterValue:
    """A counter at one moment."""

    count: int

    def plus(self, other: CounterValue) -> CounterValue:
        return CounterValue(self.count + other.count)


@dataclass(frozen=True, slots=True)
class GaugeValue:
    """A gauge at one moment."""

    value: float

    def plus(self, other: GaugeValue) -> GaugeValue:
        return other


@dataclass(frozen=True, slots=True)
class TimerValue:
    """A timer at one moment."""

    count: int
    total_ns: int
    max_ns: int

    def plus(self, other: TimerValue) -> TimerValue:
        return TimerValue(self.count + other.count, self.total_ns + other.total_ns, max(self.max_ns, other.max_ns))


Value: TypeAlias = CounterValue | GaugeValue | TimerValue
Row: TypeAlias = tuple[str, str, str, str, tuple[int | float, ...]]
"""Source, group, name, kind, numbers: a metric between processes."""

_KINDS: dict[str, Any] = {"counter": CounterValue, "gauge": GaugeValue, "timer": TimerValue}
_NUMBERS: dict[type, tuple[str, tuple[str, ...]]] = {
    CounterValue: ("counter", ("count",)),
    GaugeValue: ("gauge", ("value",)),
    TimerValue: ("timer", ("count", "total_ns", "max_ns")),
}


class Snapshot(Mapping[MetricId, Value]):
    """Metrics at one moment.

    Example:
        >>> key = MetricId("Partition 0", "stage.1", "messages-actually-processed")
        >>> before, more = Snapshot({key: CounterValue(2)}), Snapshot({key: CounterValue(3)})
        >>> before.merged(more).to_dict()
        {'Partition 0': {'stage.1': {'messages-actually-processed': 5}}}
    """

    def __init__(self, values: Mapping[MetricId, Value] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, key: MetricId) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[MetricId]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self)} metrics>"

    def merged(self, *later: Snapshot) -> Snapshot:
        """Merge them: counters and timers are added; of a gauge, the later one holds, and so it does of two metrics of
        one name and different kinds."""
        found = dict(self._values)
        for snapshot in later:
            for key, value in snapshot.items():
                old = found.get(key)
                found[key] = old.plus(value) if type(old) is type(value) else value  # type: ignore[arg-type]
        return Snapshot(found)

    def without_gauges(self) -> Snapshot:
        """The metrics that still count after their process has gone."""
        return Snapshot({key: value for key, value in self.items() if not isinstance(value, GaugeValue)})

    def total(self, name: str, group: str | None = None) -> float:
        """The sum of all counters and gauges of this name, and of the counts of its timers.

        Args:
            name: for example `messages-actually-processed`.
            group: only the metrics of this group, for example `stage.1`.
        """
        found = (value for key, value in self.items() if key.name == name and group in {None, key.group})
        return sum(value.value if isinstance(value, GaugeValue) else value.count for value in found)

    def to_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Source -> group -> name -> number; of a timer `{"count": ..., "total_ns": ..., "max_ns": ...}`. Sorted."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for key, value in sorted(self.items(), key=lambda item: item[0]):
            kind, names = _NUMBERS[type(value)]
            numbers = {name: getattr(value, name) for name in names}
            shown = numbers if kind == "timer" else next(iter(numbers.values()))
            found.setdefault(key.source, {}).setdefault(key.group, {})[key.name] = shown
        return found

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for key, value in self.items():
            kind, names = _NUMBERS[type(value)]
            found.append((*key, kind, tuple(getattr(value, name) for name in names)))
        return found

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> Snapshot:
        """Read `rows`. Raises KeyError or TypeError if they are of another form."""
        return cls({MetricId(source, group, name): _KINDS[kind](*n) for source, group, name, kind, n in rows})
