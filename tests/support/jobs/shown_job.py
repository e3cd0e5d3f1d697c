"""A stopped job that has something to show in every table of every command, and is the same in each run of a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

from penstock.api.requests import DrainMode, DrainNotification, StartpointOldest, StartpointTimestamp
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.streams import STREAMS, IntermediateStream, StreamsSection, WrittenRanges
from penstock.drain.requests import DrainRequests
from penstock.drain.wing import DrainProgress, StageDrain, drain_board
from penstock.driver.show.metrics import JobMetrics
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.job.shown import (
    GraphEdge,
    GraphOperator,
    GraphStage,
    JobGraph,
    KeyWork,
    MetricsBoard,
    Outage,
    RunOutage,
    RunPhase,
    RunWork,
    ShownRun,
    TaskWork,
    graph_board,
    outage_board,
    phase_board,
)
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.outbox.wing import OUTBOX, OutboxObject, OutboxSection, OutputPart
from penstock.side.wing import RunSideStores, SideStoreFacts, side_store_board
from penstock.standby.wing import RunStandbys, StandbyFacts, standby_board
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import RequestKey, StartpointRequest
from penstock.system.local import LocalSystem
from penstock.tables.manifest import TableFile, TableFingerprint, TableManifest
from penstock.tables.registry import TableRegistry, VersionRefusal, refusal_of
from tests.support.stores.state_job import StateJob

NOW_MS = 1_700_000_100_000
DRIVER = "token"
IN = [SystemStreamPartition("local", "in", partition) for partition in range(2)]
OUT = SystemStreamPartition("local", "out", 0)
BETWEEN = SystemStream("local", "trips-by-tail")
PRINT = TableFingerprint("string", "json", ("tail",), None, single_value=False, tasks=2, broadcast=False)
GRAPH = JobGraph(
    "run",
    (
        GraphStage(0, (GraphOperator("input-1", "input", (), "local.in"), GraphOperator("parse", "map"))),
        GraphStage(1, (GraphOperator("totals", "process", ("first", "second")),)),
    ),
    (GraphEdge("local.in", 0), GraphEdge(0, 1, "parse"), GraphEdge(1, "local.out", "totals")),
)
WORK = RunWork(
    7, 9_999, NOW_MS - 12_000, ((1, 5_000),), (TaskWork(1, 1, 4_000, 9_000, "totals"),), (KeyWork(1, "N1", 4_000, 0.8),)
)


class ShownJob:
    """The job `contract-1`. Its last record, boards and requests have a part of every wing."""

    def __init__(self, folder: Path) -> None:
        self.state = StateJob(
            folder / "home", tasks=2, backends=("changelog-files", "changelog-stream"), versions=(1, 2)
        )
        self.objects, self.paths = self.state.objects, self.state.paths
        self.system = LocalSystem("local", str(folder / "home" / "streams"))
        for stream, count in (("in", 10), ("out", 0)):
            self.system.admin().create_stream(stream, 2)
            writer = self.system.writer(None)
            for partition in range(2 if count else 0):
                value = (1_700_000_000_000, b"N1", b'{"miles": 7}')
                writer.append(SystemStreamPartition("local", stream, partition), [value] * count)
            writer.close()
        self.state.commit({0: {b"k": b'"0"'}, 1: {b"l": b'"1"'}})
        kept = self.state.commit({0: {b"k": b'"1"', b"m": b'{"miles":7}'}, 1: {b"l": None}})
        self.state.commit({0: {b"b": b"2"}}, store="second", retained=[kept])
        self.last = self._last()

    def _last(self) -> CheckpointRecord:
        """The last checkpoint once more, with everything that a record may have."""
        last = self.state.log.read().checkpoints[-1]
        outbox = OutboxObject(self.paths.outbox("1-1-0-0"), 0, 1000, "0" * 64, {OUT: OutputPart(2, 30)})
        between = IntermediateStream(
            2, 1_700_000_000_000, {0: 7, 1: 3}, (WrittenRanges(4, 5, {0: ((7, 9), (12, 20))}),)
        )
        record = replace(
            last,
            id=CheckpointId(1_700_000_000_009, 7),
            parent=last.id,
            batch=40,
            batch_time_ms=1_700_000_009_000,
            retained=None,
            next_offsets={task: {IN[task]: 4 + 3 * task} for task in range(2)},
            lost={IN[1]: 3},
            moved=(IN[0],),
            ended=None,
        )
        record = record.having(
            TIME, TimeSection({0: {IN[0]: 1_700_000_001_000}}, {"hours": 1_700_000_002_000, "days": END_OF_TIME})
        )
        record = record.having(STREAMS, StreamsSection({BETWEEN: between}, {BETWEEN: "by-tail string json"}))
        record = record.having(OUTBOX, OutboxSection((outbox,), (), ("local",), "contract-1-uid"))
        self.objects.put_if_absent(outbox.key, b"x")
        self.objects.put_if_absent(self.paths.outbox("1-9-0-0"), b"x")
        self.state.log.append(record)
        return record

    def show_run(self) -> None:
        """Fill the boards of the last run."""
        objects, paths = self.objects, self.paths
        job = JobMetrics()
        job.table_stands("planes", 6, 7, 40, failing=True)
        job.table_stands("airlines", 0, 1, 99, failing=False)
        run, task, second = (MetricsRegistry(name) for name in ("job", "Partition 0", "Partition 1"))
        run.new_counter("job", "batches").inc(1_300)
        run.new_timer("job", "commit-ns").update(1_500_000_000)
        for way, count in ("direct", 1_250), ("spark-large", 46), ("spark-start", 4):
            run.new_counter("job", f"batches-{way}").inc(count)
        for each in task, second:
            each.new_counter("stage.1", "dead-letters").inc(600)
            each.new_counter("user.mine", "dead-letters").inc(7)
        task.new_gauge("user.mine", "share").set(0.25)
        task.new_gauge("store.first", "rocksdb.estimate-pending-compaction-bytes").set(987_654_321_987)
        task.new_gauge("store.seats", "side-inputs-lag-local.planes.0").set(12)
        task.new_gauge("store.seats", "side-inputs-catching-up").set(1)
        task.new_gauge("store.towns", "side-inputs-lag-local.towns.0").set(1_200)
        task.new_gauge("store.towns", "side-inputs-failing").set(1)
        task.new_counter("store.first", "gets").inc(1_000)
        task.new_counter("store.first", "cache-hits").inc(250)
        task.new_timer("backend.changelog-files", "upload-ns").update(20_000_000)
        task.new_counter("backend.changelog-files", "bytes-uploaded").inc(2_000)
        found = Snapshot().merged(job.snapshot(), run.snapshot(), task.snapshot(), second.snapshot())
        reached = {(task, IN[task]): 6 + 3 * task for task in range(2)}
        MetricsBoard(objects, paths).put(ShownRun("run", NOW_MS, found, reached, DRIVER, work=WORK))
        stores = (SideStoreFacts("seats", ("local.planes",), "Seats"), SideStoreFacts("planes", pushed="/data/planes"))
        side_store_board(objects, paths).put(RunSideStores(stores))
        graph_board(objects, paths).put(GRAPH)
        for number in range(1, 3):
            registry = TableRegistry(objects, paths, "planes")
            registry.put_file(f"1-{number}", "0-0.sst", b"abc")
            files = (TableFile("0-0.sst", 0, "a" * 64, 3_000, 2_000, b"N1", b"N2"),)
            draft = TableManifest("planes", 0, 1, f"1-{number}", "/data/planes", f"v{number}", 2, NOW_MS, PRINT, files)
            registry.publish(draft)
        refusal_of(objects, paths, "planes").put(VersionRefusal("v3 abd", "it has no column `tail`", NOW_MS))
        manager = StartpointManager(objects, paths, 1 << 50)
        time = replace(StartpointTimestamp(1_600_000_000_000), creation_timestamp=NOW_MS - 2)
        oldest = replace(StartpointOldest(), creation_timestamp=NOW_MS - 1)
        manager.write(StartpointRequest(RequestKey(IN[1]), "1" * 32, time, "clear"))
        manager.write(StartpointRequest(RequestKey(IN[0], "Partition 0"), "2" * 32, oldest))

    def run(self, *, drains: bool = False) -> None:
        """Let another host have the job."""
        holder = LeaseHolder("elsewhere", 7, "1", "boot", "pid:[1]", "run", "2024-01-01T00:00:00+00:00")
        state = LeaseState(holder, 1, DRIVER, renewed_ms=NOW_MS)
        self.objects.put_if_absent(self.paths.lease, state.encode())
        phase = RunPhase(
            "run", "bootstrapping" if not drains else "running", NOW_MS, DRIVER, "" if drains else "5 of 9 messages"
        )
        phase_board(self.objects, self.paths).put(phase)
        outage = Outage(NOW_MS, "the system `local` does not answer")
        outage_board(self.objects, self.paths).put(RunOutage("run", outage))
        standbys = (
            StandbyFacts(0, "7-0", str(self.last.id), 1_500, ""),
            StandbyFacts(1, "7-1", None, None, "fetches `first`"),
        )
        standby_board(self.objects, self.paths).put(RunStandbys("run", standbys))
        if drains:
            uuid = UUID("0190a0b0-0000-7000-8000-000000000001")
            DrainRequests(self.objects, self.paths).write(DrainNotification(uuid, "run", DrainMode.DEFAULT))
            stages = (StageDrain(0, ("input-1",), 3, ended=True), StageDrain(1, ("hours",), 2, 3, 1, 4, 5))
            drain = DrainProgress("run", (str(uuid),), "draining", stages, "task 1 has run for 5.0 s")
            drain_board(self.objects, self.paths).put(drain)

    def live(self) -> tuple[str, Snapshot, RunWork] | None:
        """The metrics and the work of the run, as its driver has them."""
        found = MetricsBoard(self.objects, self.paths).get()
        return None if found is None else (DRIVER, found.metrics, WORK)

    def close(self) -> None:
        self.state.close()
