"""The work of a run: that of operators with state in a batch, and that of containers, from their beats.

Fields of the former are named as in Spark's StateOperatorProgress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.base.retry import Clock
from penstock.base.wording import printable
from penstock.graph.specs import ApplicationGraph
from penstock.job.shown import MOST_KEYS, KeyWork, RunWork, most_work
from penstock.metrics.snapshot import GaugeValue, Snapshot
from penstock.runtime.reports import Report
from penstock.wire.protocol import Beat

_MEMORY = ("rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage", "rocksdb.estimate-table-readers-mem")
_LOOK_SECONDS = 1.0
"""The interval at which the containers' gauges are added up. They are as of the last beats anyway."""


@dataclass(frozen=True, slots=True)
class StateOperatorProgress:
    """An operator with state. None: not known.

    A store that several operators share counts as the first one's. Operators of a stage share its time, and a commit
    backs up all stores together: no time is an operator's own.
    """

    operator_name: str
    """Its id."""
    num_rows_total: int | None
    """An estimate of the keys in its stores, as of the containers' last beats."""
    num_rows_updated: int
    """Keys that the batch wrote; each counts once."""
    num_rows_removed: int
    """Keys that the batch deleted; each counts once."""
    memory_used_bytes: int | None
    """The memory of its stores in RocksDB, as of the containers' last beats."""
    num_rows_dropped_by_watermark: int
    """Messages of the batch that came too late, and went to no `late_to`."""
    num_shuffle_partitions: int
    num_state_store_instances: int
    all_updates_time_ms: int | None = None
    all_removals_time_ms: int | None = None
    commit_time_ms: int | None = None
    custom_metrics: Mapping[str, int] = field(default_factory=dict)


class StateProgress:
    """The operators with state of a job."""

    def __init__(self, graph: ApplicationGraph, tasks: int, containers: Callable[[], Snapshot], clock: Clock) -> None:
        """`containers`: their metrics, as of their last beats."""
        self._tasks, self._containers, self._clock = tasks, containers, clock
        self._operators = _own_stores(graph)
        self._looked: float | None = None
        self._keys: Mapping[str, int] = {}
        self._memory: Mapping[str, int] = {}

    def of_batch(self, reports: Iterable[Report]) -> tuple[StateOperatorProgress, ...]:
        """The work of the reports' attempts, which were applied."""
        if not self._operators:
            return ()
        self._look()
        written, deleted, late = Counter[str](), Counter[str](), Counter[str]()
        for report in reports:
            for store, (changes, deletes) in report.changed.items():
                written[store] += changes - deletes
                deleted[store] += deletes
            for _, group, name, _, numbers in report.metrics:
                if name == "late-dropped":
                    late[group] += int(numbers[0])
        return tuple(
            StateOperatorProgress(
                operator_name=operator,
                num_rows_total=_sum(self._keys, stores),
                num_rows_updated=sum(written[store] for store in stores),
                num_rows_removed=sum(deleted[store] for store in stores),
                memory_used_bytes=_sum(self._memory, stores),
                num_rows_dropped_by_watermark=late[f"operator.{operator}"],
                num_shuffle_partitions=self._tasks,
                num_state_store_instances=self._tasks * len(stores),
            )
            for operator, stores in self._operators.items()
        )

    def _look(self) -> None:
        now = self._clock.monotonic()
        if self._looked is not None and now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        keys, memory = Counter[str](), Counter[str]()
        for (source, group, name), value in self._containers().items():
            if isinstance(value, GaugeValue) and source.startswith("Partition ") and group.startswith("store."):
                store = group.removeprefix("store.")
                if name == "keys":
                    keys[store] += int(value.value)
                elif name in _MEMORY:
                    memory[store] += int(value.value)
        self._keys, self._memory = keys, memory


def _own_stores(graph: ApplicationGraph) -> dict[str, list[str]]:
    """Id of each operator with state → the stores that no operator before it uses."""
    written = {store.name for store in graph.written_stores}
    found: dict[str, list[str]] = {}
    for operator in graph.operators:
        if written.intersection(operator.stores):
            taken = {store for stores in found.values() for store in stores}
            found[operator.id] = [store for store in operator.stores if store in written - taken]
    return found


def _sum(known: Mapping[str, int], stores: Sequence[str]) -> int | None:
    return sum(known[store] for store in stores) if all(store in known for store in stores) else None


def work_of(beats: Sequence[Beat], running: tuple[int, int] | None, since_ms: int) -> RunWork:
    """The work of a run.

    Args:
        beats: the last ones of all containers.
        running: the number and the messages of the batch that runs; None between batches.
        since_ms: the begin of the batch, in epoch milliseconds.
    """
    keys = _keys(beats)
    if running is None:
        return RunWork(keys=keys)
    batch, messages = running
    own = [beat for beat in beats if beat.batch == batch]
    processed = Counter[int]()
    for beat in own:
        processed.update(beat.processed)
    tasks = most_work([each for beat in own for each in beat.work])
    return RunWork(batch, messages, since_ms, tuple(sorted(processed.items())), tuple(tasks), keys)


def _keys(beats: Sequence[Beat]) -> tuple[KeyWork, ...]:
    """The keys with the most messages. All messages of a key in a stage come to one container."""
    totals = Counter[int]()
    for beat in beats:
        totals.update(beat.keyed)
    found = sorted((each for beat in beats for each in beat.keys), key=lambda each: -each[2])[:MOST_KEYS]
    return tuple(KeyWork(stage, _text(key), count, count / max(1, totals[stage])) for stage, key, count in found)


def _text(key: bytes) -> str:
    text = printable(key)
    return f"0x{key.hex()}" if text is None else text
