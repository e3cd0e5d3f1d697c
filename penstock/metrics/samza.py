"""Metrics as Samza's MetricsSnapshotReporter writes them: a header and groups, in plain JSON.

Penstock's groups are all in a message. Where Samza has the same metric, it is there under Samza's group and name as
well: readers of a Samza job's metrics find them. docs/metrics.md has the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue, Value

_TASK = "org.apache.samza.container.TaskInstanceMetrics"
_CONTAINER = "org.apache.samza.container.SamzaContainerMetrics"
_STORE = "org.apache.samza.storage.kv."
_MIB = 1 << 20

SAMZA_NAMES: Final[dict[tuple[str, str], tuple[str, str]]] = {
    ("job", "commit-calls"): (_TASK, "commit-calls"),
    ("job", "commits-skipped"): (_TASK, "commits-skipped"),
    ("job", "commit-ns"): (_TASK, "commit-ns"),
    ("stage", "messages-actually-processed"): (_TASK, "messages-actually-processed"),
    ("stream", "messages-sent"): (_TASK, "send-calls"),
    ("backend", "snapshot-ns"): (_TASK, "snapshot-ns"),
    ("backend", "upload-ns"): (_TASK, "async-upload-ns"),
    ("backend", "cleanup-ns"): (_TASK, "async-cleanup-ns"),
    ("store", "gets"): (f"{_STORE}KeyValueStorageEngineMetrics", "{subject}-gets"),
    ("store", "cache-hits"): (f"{_STORE}CachedStoreMetrics", "{subject}-cache-hits"),
    ("store", "puts"): (f"{_STORE}KeyValueStoreMetrics", "{subject}-puts"),
    ("store", "deletes"): (f"{_STORE}KeyValueStoreMetrics", "{subject}-deletes"),
    ("store", "bytes-written"): (f"{_STORE}KeyValueStoreMetrics", "{subject}-bytes-written"),
    ("container", "physical-memory-bytes"): (_CONTAINER, "physical-memory-mb"),
}
"""Kind of group and name -> Samza's group and name. Metrics of several stages, streams or backends of a task are added
up."""


@dataclass(frozen=True, slots=True)
class MetricsHeader:
    """The common part of the headers of a run's messages."""

    job_name: str
    job_id: str
    run_id: str
    version: str
    host: str
    began_ms: int
    """When the counting began, in epoch milliseconds."""

    def header(self, source: str, now_ms: int) -> dict[str, object]:
        """Samza's MetricsHeader, with all of its fields: its own reader needs them."""
        own = samza_source(source)
        return {
            "job-name": self.job_name,
            "job-id": self.job_id,
            "container-name": own if source.startswith("container ") else "job",
            "exec-env-container-id": "",
            "samza-epoch-id": self.run_id,
            "source": own,
            "version": "unknown",
            "samza-version": f"penstock-{self.version}",
            "host": self.host,
            "time": now_ms,
            "reset-time": self.began_ms,
        }


def samza_messages(snapshot: Snapshot, origin: MetricsHeader, now_ms: int) -> Iterator[tuple[str, bytes]]:
    """(source, message) for each source, in the form of Samza's MetricsSnapshotSerde."""
    for source, groups in samza_groups(snapshot).items():
        yield samza_source(source), orjson.dumps({"header": origin.header(source, now_ms), "metrics": groups})


def samza_source(source: str) -> str:
    """Samza's name of the source.

    Example:
        >>> samza_source("Partition 3"), samza_source("container 0-1"), samza_source("job")
        ('TaskName-Partition 3', 'samza-container-0-1', 'job')
    """
    if source.startswith("Partition "):
        return f"TaskName-{source}"
    kind, _, name = source.partition(" ")
    return f"samza-container-{name}" if kind == "container" else source


def samza_groups(snapshot: Snapshot) -> dict[str, dict[str, dict[str, Any]]]:
    """Source -> group -> name -> number, Penstock's groups and Samza's; of a timer the average in nanoseconds.

    Example:
        >>> found = Snapshot({MetricId("Partition 0", "store.totals", "gets"): CounterValue(7)})
        >>> samza_groups(found)["Partition 0"]["org.apache.samza.storage.kv.KeyValueStorageEngineMetrics"]
        {'totals-gets': 7}
    """
    names = ((samza_name(key), value) for key, value in snapshot.items())
    also = Snapshot().merged(*(Snapshot({name: _in_unit(name, value)}) for name, value in names if name is not None))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for key, value in sorted({**also, **snapshot}.items(), key=lambda item: item[0]):
        found.setdefault(key.source, {}).setdefault(key.group, {})[key.name] = _number(value)
    return found


def samza_name(key: MetricId) -> MetricId | None:
    """The group and name of the metric in Samza; None if it has none. An application's own has its group.

    Example:
        >>> samza_name(MetricId("Partition 0", "user.orders", "late"))
        MetricId(source='Partition 0', group='orders', name='late')
    """
    kind, _, subject = key.group.partition(".")
    if kind == "user":
        return MetricId(key.source, subject, key.name)
    if kind == "store" and key.name.startswith("rocksdb."):
        return MetricId(key.source, f"{_STORE}KeyValueStoreMetrics", f"{subject}-{key.name}")
    found = SAMZA_NAMES.get((kind, key.name))
    return None if found is None else MetricId(key.source, found[0], found[1].format(subject=subject))


def _in_unit(name: MetricId, value: Value) -> Value:
    """Convert bytes of memory to MB, which Samza counts."""
    if isinstance(value, GaugeValue) and name.name == "physical-memory-mb":
        return GaugeValue(value.value / _MIB)
    return value


def _number(value: Value) -> float:
    match value:
        case CounterValue(count):
            return count
        case GaugeValue(number):
            return number
        case TimerValue(count, total_ns, _):
            return total_ns / max(1, count)
