"""The driver's metrics of a run: its own, those that attempts report, and those of containers.

The reports of attempts count once their batch has ended: those of a run that is not applied are dropped with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.driver.show.replay import RepeatedReads
from penstock.graph.topology import Topology
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.runtime.messages.packet import split_origin
from penstock.runtime.reports import Report

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
