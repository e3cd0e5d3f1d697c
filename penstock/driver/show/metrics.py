"""The driver's metrics of a run: its own, those that attempts report, and those of containers.

The reports of attempts count once their batch has ended: those of a run that is not applied are dropped with it.
After a start or a rewind, the messages that the job reads again are counted, until it is back where it was.

The state of the run is measured at the moment at which somebody asks: an idle run, one that waits, one that hangs and
one that cannot commit all look alike in counters of work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import Positions, TaskSsp
from penstock.batch.portions import PortionRead
from penstock.graph.topology import Topology
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.runtime.messages.packet import split_origin
from penstock.runtime.reports import Report
from penstock.system.base import System


@dataclass(frozen=True, slots=True)
class RepeatedReads:
    """The messages that a batch read again."""

    messages: Mapping[TaskSsp, int] = field(default_factory=dict)
    took_ns: int | None = None
    """If the job is now back where it was: the time since the first batch that read again."""


class Replay:
    """The furthest positions of the job. One thread writes them; any thread may read `reached`."""

    def __init__(self) -> None:
        self._at: Positions = {}
        self._target: Positions = {}
        """The positions of the job before it went back; empty while nothing is read again."""
        self._began: float | None = None

    @property
    def reached(self) -> Positions:
        """The furthest next offsets of all tasks so far."""
        target = self._target
        return _furthest(target, self._at) if target else self._at

    @property
    def now_at(self) -> Positions:
        """The present positions of tasks that are not where they were before; empty while nothing is read again."""
        at, reached = self._at, self.reached
        return {} if at is reached else {key: offset for key, offset in at.items() if reached[key] != offset}

    def continues(self, reached: Positions) -> None:
        """Take over the positions that an earlier run reached. Called before the first batch."""
        self._at = reached

    def ended(
        self,
        read: Mapping[TaskSsp, PortionRead],
        latest: Mapping[SystemStreamPartition, int],
        before: Positions,
        after: Positions,
        began: float,
        ended: float,
    ) -> RepeatedReads:
        """Count a batch that has ended.

        Args:
            latest: the next offset that every input partition assigns. A stream that ends before `reached` is not the
                one that was read before.
            began: the start of the batch, on the run's monotonic clock, in seconds.
            ended: its end, on the same clock.
        """
        if self._at and before is not self._at and before != self._at:
            self._target = _furthest(self._target, self._at)
        self._at = after
        if not self._target:
            return RepeatedReads()
        target = {at: min(end, latest.get(at.ssp, 0)) for at, end in self._target.items()}
        messages = read_again(read, before, target)
        if messages and self._began is None:
            self._began = began
        if any(after.get(at, end) < end for at, end in target.items()):
            self._target = target
            return RepeatedReads(messages)
        since, self._began, self._target = self._began, None, {}
        return RepeatedReads(messages, None if since is None else round((ended - since) * 1e9))


def read_again(read: Mapping[TaskSsp, PortionRead], before: Positions, target: Positions) -> dict[TaskSsp, int]:
    """The number of a batch's messages that are before the target. If a portion goes beyond it and offsets have
    gaps, it is the offsets' share of the messages. Pure."""
    found: dict[TaskSsp, int] = {}
    for at, part in read.items():
        start = before[at]
        again = min(part.next_offset, target.get(at, start)) - start
        if again > 0:
            found[at] = round(part.messages * again / (part.next_offset - start))
    return found


def _furthest(some: Positions, others: Positions) -> dict[TaskSsp, int]:
    return {at: max(some.get(at, 0), others.get(at, 0)) for at in {**some, **others}}


JOB = "job"
NS_PER_MS = 1_000_000


class JobMetrics:
    """All metrics of a run. The run loop's thread writes, any thread takes snapshots."""

    def __init__(self) -> None:
        self._registry = new = MetricsRegistry(JOB)
        self.batches = new.new_counter(JOB, "batches")
        self.retries = new.new_counter(JOB, "retries")
        self.rewinds = new.new_counter(JOB, "rewinds")
        self.commit_calls = new.new_counter(JOB, "commit-calls")
        self.commits_skipped = new.new_counter(JOB, "commits-skipped")
        self.commit_ns = new.new_timer(JOB, "commit-ns")
        self.snapshot_ns = new.new_timer(JOB, "snapshot-ns")
        self.restore_ns = new.new_timer(JOB, "restore-ns")
        self._replay_ns = new.new_timer(JOB, "replay-ns")
        self._parts = {
            part: new.new_timer(JOB, name)
            for part, name in (
                ("triggerExecution", "batch-ns"),
                ("addBatch", "run-ns"),
                ("end", "end-ns"),
                ("commitWait", "commit-wait-ns"),
            )
        }
        self.containers: Callable[[], Snapshot] = Snapshot
        """The metrics of the containers, as of their last beats."""
        self.state: Callable[[], Snapshot] = Snapshot
        """The state of the run now; see `run_state`."""
        self._tasks: dict[int, MetricsRegistry] = {}
        self._reported = Snapshot()
        self._lock = threading.Lock()

    def snapshot(self) -> Snapshot:
        with self._lock:
            own = [registry.snapshot() for registry in (self._registry, *self._tasks.values())]
            return self._reported.merged(*own, self.containers(), self.state())

    def ended(self, reports: Sequence[Report], topology: Topology) -> None:
        self.batches.inc()
        with self._lock:
            for report in reports:
                self._count(report, topology)
            rows = [row for report in reports for row in report.metrics]
            if rows:
                self._reported = self._reported.merged(Snapshot.of_rows(rows))

    def took(self, parts_ms: Mapping[str, int], total_ms: int, way: str) -> None:
        """Note the durations of a batch: its parts, named as in `JobProgress`, and in all.

        `way`: see `BatchRunner`.
        """
        if way:
            self._registry.new_counter(JOB, f"batches-{way}").inc()
        for part, duration_ms in (*parts_ms.items(), ("triggerExecution", total_ms)):
            if part in self._parts:
                self._parts[part].update(duration_ms * NS_PER_MS)

    def lag(self, messages: Mapping[str, int]) -> None:
        """Note the unread messages of each intermediate stream at the end of a batch; for inputs, see `state`."""
        for stream, count in messages.items():
            self._registry.new_gauge(f"stream.{stream}", "messages-behind-high-watermark").set(count)

    def lost(self, lost: Mapping[SystemStreamPartition, int]) -> None:
        """Note the messages of each input that the state lacks, because they were deleted before they were read."""
        by_stream: dict[SystemStream, int] = {}
        for ssp, count in lost.items():
            by_stream[ssp.system_stream] = by_stream.get(ssp.system_stream, 0) + count
        for stream, count in by_stream.items():
            self._registry.new_gauge(f"stream.{stream}", "messages-lost").set(count)

    def event_time(self, watermarks: Mapping[str, int], batch_time_ms: int) -> None:
        for stream, watermark in watermarks.items():
            self._registry.new_gauge(f"stream.{stream}", "watermark").set(watermark)
            self._registry.new_gauge(f"stream.{stream}", "watermark-delay-ms").set(batch_time_ms - watermark)

    def table_swapped(self, table: str, load_ns: int) -> None:
        self._registry.new_counter(f"store.{table}", "tables-swaps").inc()
        self._registry.new_timer(f"store.{table}", "tables-load-ns").update(load_ns)

    def table_failed(self, table: str) -> None:
        self._registry.new_counter(f"store.{table}", "tables-load-failures").inc()

    def table_stands(self, table: str, in_use: int, loading: int, percent: int, *, failing: bool) -> None:
        """Note the versions of a pushed table that are in use and loading; 0: none."""
        stands = {"version": in_use, "loading": loading, "loading-percent": percent, "failing": int(failing)}
        for name, value in stands.items():
            self._registry.new_gauge(f"store.{table}", f"tables-{name}").set(value)

    def replayed(self, again: RepeatedReads) -> None:
        with self._lock:
            for at, messages in again.messages.items():
                stream = f"stream.{at.ssp.system_stream}"
                self._task(at.task).new_counter(stream, "messages-replayed").inc(messages)
        if again.took_ns is not None:
            self._replay_ns.update(again.took_ns)

    def _task(self, task: int) -> MetricsRegistry:
        if task not in self._tasks:
            self._tasks[task] = MetricsRegistry(f"Partition {task}")
        return self._tasks[task]

    def _count(self, report: Report, topology: Topology) -> None:
        task = self._task(report.task)
        if report.stage in (topology.sink, topology.outbox):
            for output, count in report.written.items():
                task.new_counter(f"stream.{output}", "messages-sent").inc(count)
            return
        stage = f"stage.{report.stage}"
        task.new_counter(stage, "messages-actually-processed").inc(report.messages)
        task.new_counter(stage, "dead-letters").inc(report.dead_letters)
        task.new_timer(stage, "process-ns").update(report.process_ns)
        for origin, read in report.inputs.items():
            stream = topology.graph.sources[split_origin(origin)[0]].stream
            task.new_counter(f"stream.{stream}", "messages-read").inc(read.messages)
            task.new_counter(f"stream.{stream}", "bytes-read").inc(read.bytes)
            if topology.graph.uses_time:
                task.new_counter(f"stream.{stream}", "messages-too-far-ahead").inc(read.ahead)
            if read.foreign:
                task.new_counter(f"stream.{stream}", "messages-foreign").inc(read.foreign)
            task.new_counter(f"stream.{stream}", "messages-replayed")  # there from the first batch on


PHASES: Final = (
    "starting",
    "restoring",
    "bootstrapping",
    "publishing",
    "running",
    "draining",
    "stopping",
    "ended",
    "drained",
    "failed",
)
"""See `Job.phase`."""


@dataclass(slots=True)
class UncommittedTime:
    """Since when there is something that no complete checkpoint has, in epoch milliseconds; 0: there is nothing.

    Used by the run loop's thread; any thread may read `since_ms`.
    """

    since_ms: int = 0
    _behind_ms: int = 0
    """The same for what came after the commit in flight began."""

    def batch_ended(self, now_ms: int) -> None:
        """Note a batch that no commit has yet."""
        self.since_ms = self.since_ms or now_ms
        self._behind_ms = self._behind_ms or now_ms

    def commit_began(self) -> None:
        """Everything that has ended is in this commit."""
        self._behind_ms = 0

    def commit_completed(self) -> None:
        """Only batches behind the commit are left."""
        self.since_ms = self._behind_ms


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The state of a run at one moment. Times are in epoch milliseconds; 0 means that there is none."""

    phase: str
    phase_since_ms: int
    epoch: int
    failures: int
    """Since the last checkpoint."""
    checkpoint_ms: int
    outage_since_ms: int
    batch_since_ms: int
    uncommitted_since_ms: int
    containers: int
    stalled_ms: int
    """The time that the slowest attempt has spent on one message or step."""


def run_state(facts: RunFacts, lags: Mapping[SystemStream, int]) -> Snapshot:
    """The gauges of a run. A time that is not there is 0, but that of a first checkpoint is left out."""
    values: dict[MetricId, Any] = {
        MetricId(JOB, f"phase.{phase}", "active"): GaugeValue(int(facts.phase == phase)) for phase in PHASES
    }
    gauges = {
        "phase-since-ms": facts.phase_since_ms,
        "epoch": facts.epoch,
        "failures-since-checkpoint": facts.failures,
        "outage-since-ms": facts.outage_since_ms,
        "batch-since-ms": facts.batch_since_ms,
        "uncommitted-since-ms": facts.uncommitted_since_ms,
        "containers": facts.containers,
        "stalled-ms": facts.stalled_ms,
    }
    if facts.checkpoint_ms:
        gauges["last-checkpoint-ms"] = facts.checkpoint_ms
    values |= {MetricId(JOB, JOB, name): GaugeValue(value) for name, value in gauges.items()}
    for stream, lag in lags.items():
        values[MetricId(JOB, f"stream.{stream}", "messages-behind-high-watermark")] = GaugeValue(lag)
    return Snapshot(values)


def lags_of(
    positions: Positions, ends: Mapping[SystemStreamPartition, int], systems: Mapping[str, System]
) -> dict[SystemStream, int]:
    """The unread messages of each input whose ends are all known, as far as they are. Of several tasks that read a
    partition, those of the slowest count. Inputs that count something else, such as files, are left out."""
    at: dict[SystemStreamPartition, int] = {}
    for place, offset in positions.items():
        at[place.ssp] = min(offset, at.get(place.ssp, offset))
    found: dict[SystemStream, int] = {}
    for stream, own in _by_stream(at):
        system = systems[stream.system]
        if system.lag_unit == "message" and all(ssp in ends for ssp in own):
            found[stream] = sum(system.lag(at[ssp], max(at[ssp], ends[ssp])) for ssp in own)
    return found


def _by_stream(
    ssps: Collection[SystemStreamPartition],
) -> Iterator[tuple[SystemStream, list[SystemStreamPartition]]]:
    streams: dict[SystemStream, list[SystemStreamPartition]] = {}
    for ssp in ssps:
        streams.setdefault(ssp.system_stream, []).append(ssp)
    yield from streams.items()
