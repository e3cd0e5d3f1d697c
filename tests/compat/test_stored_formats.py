"""Every stored format has a golden file, which is read, and written byte for byte."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import decode_format
from penstock.checkpoint.forks import Home
from penstock.checkpoint.record import CheckpointId
from penstock.drain.wing import DrainProgress, StageDrain, drain_board
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.job.commands import FORMAT, AuditEntry
from penstock.job.identity import JobIdentity, OwnedStreams
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.snapshot import (
    CounterValue,
    GaugeValue,
    MetricId,
    MetricsHeader,
    Snapshot,
    TimerValue,
    samza_messages,
)
from penstock.objects.open import open_store
from penstock.state.backends.blob import BlobMarker, SnapshotIndex
from penstock.state.backends.objects import DirIndex, FileBlob, FileIndex
from penstock.state.engines.memory import MemoryEngine
from penstock.state.restore import LocalCopies
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from tests.support.tools.places import GOLDEN

OBJECTS, PATHS = open_store("memory://formats"), JobPaths("flights", "1")
ID = CheckpointId(1614147487244, 33577)
A, B, C = "a" * 64, "b" * 64, "c" * 64
LEASE = LeaseState(
    LeaseHolder(
        "flights-1.example",
        4711,
        "123456",
        "7a1c9e52-0b5d-4a9f-8f57-3c1de0a4b6c2",
        "pid:[4026531836]",
        "flights-1-7",
        "2026-01-02T03:04:05+00:00",
    ),
    10_000,
    "00112233445566778899aabbccddeeff",
    42,
)
FILES = {
    "000008.sst": FileIndex(
        "000008.sst", 70, A, (FileBlob(f"6-1614147480000-1-{B}", 0), FileBlob(f"7-1614147487244-33577-{C}", 35))
    ),
    "empty": FileIndex("empty", 0, C, ()),
    "sub/x": FileIndex("x", 1, B, (FileBlob(f"7-1-0-{B}", 0),)),
}
INDEX = SnapshotIndex(
    str(ID), 1614147487244, "flights", "1", 3, "totals", 7, "6-1614147480000-1.index", DirIndex.of(FILES)
)
SSP = SystemStreamPartition("local", "changes", 0)
RETENTION = StreamRetention(max_bytes=1 << 40)
WRITER = WriterIdentity("job", 3)
TASK = "Partition 3"
METRICS = Snapshot(
    {
        MetricId("job", "job", "commit-calls"): CounterValue(3),
        MetricId("job", "job", "commit-ns"): TimerValue(3, 6_000_000, 4_000_000),
        MetricId("job", "job", "batches"): CounterValue(40),
        MetricId(TASK, "stage.0", "messages-actually-processed"): CounterValue(200),
        MetricId(TASK, "stage.1", "messages-actually-processed"): CounterValue(70),
        MetricId(TASK, "stage.1", "process-ns"): TimerValue(2, 5_000, 4_000),
        MetricId(TASK, "stream.local.clicks", "messages-read"): CounterValue(200),
        MetricId(TASK, "stream.local.totals", "messages-sent"): CounterValue(60),
        MetricId(TASK, "stream.local.late", "messages-sent"): CounterValue(9),
        MetricId(TASK, "store.totals", "gets"): CounterValue(70),
        MetricId(TASK, "store.totals", "cache-hits"): CounterValue(50),
        MetricId(TASK, "store.totals", "puts"): CounterValue(65),
        MetricId(TASK, "store.totals", "bytes-written"): CounterValue(1_300),
        MetricId(TASK, "store.totals", "keys"): GaugeValue(20),
        MetricId(TASK, "store.totals", "rocksdb.block-cache-usage"): GaugeValue(4096),
        MetricId(TASK, "backend.blob", "snapshot-ns"): TimerValue(1, 1_000, 1_000),
        MetricId(TASK, "backend.blob", "upload-ns"): TimerValue(1, 9_000, 9_000),
        MetricId(TASK, "backend.changelog-files", "upload-ns"): TimerValue(1, 1_000, 1_000),
        MetricId(TASK, "backend.blob", "cleanup-ns"): TimerValue(0, 0, 0),
        MetricId(TASK, "user.orders", "late"): CounterValue(4),
        MetricId("container 0-1", "container", "physical-memory-bytes"): GaugeValue(3 << 20),
        MetricId("container 0-1", "container", "pending-bytes"): GaugeValue(12.5),
    }
)
RUN = ShownRun("7a1c9e520b5d", 1614147487244, METRICS, {(3, SystemStreamPartition("local", "clicks", 3)): 200})
ORIGIN = MetricsHeader("flights", "1", "7a1c9e520b5d", "0.1.0", "flights-1.example", 1614147480000)
HEADER = {
    "job-name": "flights",
    "job-id": "1",
    "container-name": "job",
    "exec-env-container-id": "",
    "samza-epoch-id": "7a1c9e520b5d",
    "source": "TaskName-Partition 3",
    "version": "unknown",
    "samza-version": "penstock-0.1.0",
    "host": "flights-1.example",
    "time": 1614147487244,
    "reset-time": 1614147480000,
}
"""The fields of Samza's MetricsHeader."""


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_the_lease() -> None:
    assert LeaseState.decode(golden("lease-format1.json"), "k") == LEASE
    assert LEASE.encode() == golden("lease-format1.json")


def test_the_owners_of_streams_in_the_folder_of_a_job() -> None:
    stream, paths = SystemStream("kafka", "log"), JobPaths("counts", "1")
    mine = "job counts-1 (uid 0123456789ab), store words"
    system = MemorySystem("kafka")
    admin = system.admin()
    admin.create_stream("log", 1)
    identity = admin.stream_identity("log")
    with closing(open_store(f"memory://{uuid.uuid4().hex}")) as objects:
        owned = OwnedStreams(objects, paths)
        assert owned.own(stream, admin, mine, lambda: None) == mine
        key = paths.metadata("owned-streams", f"kafka.log {identity}")
        assert objects.get(key) == golden("owned-stream-format1.json")
        system.owners.clear()
        system.writer(None).append(SystemStreamPartition("kafka", "log", 0), [(0, None, b"m")])
        assert owned.keeps_from(stream, admin) is None
        key = paths.metadata("written-outputs", f"kafka.log {identity}")
        assert objects.get(key) == golden("written-output-format1.json")


def test_the_home_of_a_fork() -> None:
    home = Home(JobPaths("flights", "1"), "0123456789ab", "1614147487244-33577")
    assert Home.decode(golden("fork-home-format1.json"), "k") == home
    assert home.encode() == golden("fork-home-format1.json")


def test_the_identity() -> None:
    identity = JobIdentity("0123456789ab", "file:///jobs/flights-1")
    assert JobIdentity.decode(golden("identity-format1.json"), "k") == identity
    assert identity.encode() == golden("identity-format1.json")


def test_a_record_of_the_audit_log() -> None:
    data = golden("audit-format1.json")
    entry = AuditEntry(1767323045000, "ana", "ops-1", "python", "stop", {"run": "flights-1-7"}, 1767323045020, "no")
    assert decode_format(AuditEntry, data, "it is damaged", "it", FORMAT) == entry
    assert entry.encode() == data


def test_the_index_and_the_marker_of_blobs() -> None:
    written = golden("blob-index-format1.json")
    assert SnapshotIndex.decode(written, "k") == INDEX
    assert INDEX.encode() == written
    marker = BlobMarker(f"7-{ID}.index", hashlib.sha256(written).hexdigest())
    assert BlobMarker.parse(golden("blob-marker-format1.json").decode()) == marker
    assert marker.serialize().encode() == golden("blob-marker-format1.json")


def test_a_local_copy(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "sub").mkdir(parents=True)
    (made / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    (made / "sub" / "000008.sst").write_bytes(b"table")
    LocalCopies(tmp_path).publish(ID, {"blob": "m"}, made)
    assert (tmp_path / f"copy-{ID}.json").read_bytes() == golden("local-copy-format2.json")
    assert LocalCopies(tmp_path).take(ID, {"blob": "m"}, tmp_path / "taken")
    assert (tmp_path / "taken" / "sub" / "000008.sst").read_bytes() == b"table"


def test_how_far_a_run_came_and_its_metrics() -> None:
    written = golden("metrics-last-run-format1.json")
    board = MetricsBoard(OBJECTS, PATHS)
    read = board.decode(written)
    assert (read.run_id, read.time_ms, dict(read.metrics), read.reached) == (
        RUN.run_id,
        RUN.time_ms,
        dict(METRICS),
        RUN.reached,
    )
    assert board.encode(RUN) == written


def test_how_far_a_drain_is() -> None:
    written = golden("drain-progress-format1.json")
    stages = (
        StageDrain(0, ("clicks",), 7),
        StageDrain(1, ("hours", "remind"), 7, 3, 2, 1, 5),
        StageDrain(2, ("local.out",), 6, ended=True),
    )
    waits = "operator `remind` (`on_drain`) in task 1, stage 1"
    drain = DrainProgress("7a1c9e520b5d", ("00000000-0000-0000-0000-000000000007",), "committing", stages, waits)
    board = drain_board(OBJECTS, PATHS)
    assert board.decode(written) == drain
    assert board.encode(drain) == written


def test_the_messages_of_samzas_snapshot_reporter() -> None:
    messages = dict(samza_messages(METRICS, ORIGIN, 1614147487244))
    assert messages.keys() == {"job", "TaskName-Partition 3", "samza-container-0-1"}
    assert b"\n".join(messages.values()) == golden("metrics-samza-snapshots.jsonl").rstrip()
    task = json.loads(messages["TaskName-Partition 3"])
    assert task["header"] == HEADER
    groups = task["metrics"]
    assert groups["org.apache.samza.container.TaskInstanceMetrics"] == {
        "messages-actually-processed": 270,
        "send-calls": 69,
        "snapshot-ns": 1_000,
        "async-upload-ns": 5_000,
        "async-cleanup-ns": 0,
    }
    assert groups["org.apache.samza.storage.kv.KeyValueStoreMetrics"] == {
        "totals-puts": 65,
        "totals-bytes-written": 1_300,
        "totals-rocksdb.block-cache-usage": 4096,
    }
    assert groups["orders"] == groups["user.orders"] == {"late": 4}
    container = json.loads(messages["samza-container-0-1"])
    assert container["header"]["container-name"] == container["header"]["source"] == "samza-container-0-1"
    assert container["metrics"]["org.apache.samza.container.SamzaContainerMetrics"] == {"physical-memory-mb": 3}


ENTRIES: dict[bytes, bytes | None] = {b"a": b"1", b"b": b"", b"": b"x" * 40}


def copied(tmp_path: Path, data: bytes) -> MemoryEngine:
    """The engine over a copy with these bytes."""
    (tmp_path / "read").mkdir(exist_ok=True)
    (tmp_path / "read" / "entries.zst").write_bytes(data)
    return MemoryEngine(tmp_path / "read")


def test_a_copy_of_a_store_in_memory(tmp_path: Path) -> None:
    engine = copied(tmp_path, golden("memory-copy-format2.zst"))
    assert dict(engine.scan(None, None)) == ENTRIES
    engine = MemoryEngine()
    engine.apply(ENTRIES)
    engine.copy_to(tmp_path / "made")
    assert (tmp_path / "made" / "entries.zst").read_bytes() == golden("memory-copy-format2.zst")


def test_a_damaged_copy_of_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    """Whichever bit is flipped, also where zstd would not notice it."""
    data = golden("memory-copy-format2.zst")
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptError, match="damaged"):
            copied(tmp_path, bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(CorruptError, match="damaged"):
            copied(tmp_path, data[:size])


@pytest.mark.parametrize("written", [1, 3])
def test_a_copy_of_a_store_in_memory_of_another_format(tmp_path: Path, written: int) -> None:
    body = golden("memory-copy-format2.zst")[:-32].replace(b"PSTMEM\0\2", b"PSTMEM\0" + bytes([written]))
    with pytest.raises(IncompatibleError, match=f"has format {written}"):
        copied(tmp_path, body + hashlib.sha256(body).digest())


@pytest.fixture
def stream(tmp_path: Path) -> LocalSystem:
    """The system of a stream that was written, compacted and fenced long ago."""
    shutil.copytree(GOLDEN / "local-stream-format1", tmp_path / "changes")
    return LocalSystem("local", str(tmp_path))


def test_a_local_stream_is_read(stream: LocalSystem) -> None:
    offsets = stream.admin().offsets("changes")[0]
    assert (offsets.oldest, offsets.upcoming) == (1, 5)
    assert stream.admin().retention("changes") == RETENTION
    pages = stream.reader().read_compacted(OffsetRange(SSP, 0, 5), 10)
    found = [message for page in pages for message in page]
    assert found == [(1, 1001, b"b", b"1"), (3, 1003, None, b"no key"), (4, 1004, b"c", b"\x00\xff")]


def test_a_local_stream_is_continued_and_still_fenced(stream: LocalSystem) -> None:
    with pytest.raises(PenstockError):
        stream.writer(WriterIdentity("job", 2)).append(SSP, [(1005, b"d", b"2")])
    stream.writer(WRITER).append(SSP, [(1005, b"d", b"2")])
    assert stream.admin().offsets("changes")[0].upcoming == 6


def test_a_new_local_stream_has_the_same_tables(stream: LocalSystem, tmp_path: Path) -> None:
    """The golden file is what this version writes."""
    admin = stream.admin()
    admin.create_stream("new", 1, RETENTION)
    ssp = SystemStreamPartition("local", "new", 0)
    admin.fence("new", WRITER)
    stream.writer(WRITER).append(ssp, [(n, b"k", b"v") for n in range(4)])
    admin.compact(OffsetRange(ssp, 0, 3), WRITER)
    assert tables(tmp_path / "new" / "0.db") == tables(tmp_path / "changes" / "0.db")


def tables(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    try:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master"))
    finally:
        connection.close()


def test_the_messages_of_durable_intermediate_streams() -> None:
    serde = ps.IntermediateMessageSerde(ps.Json())
    messages = [
        {"tail": "N14228", "miles": 1400},
        ps.WatermarkMessage(1614147487244),
        ps.WatermarkMessage(-1, "Partition 3"),
        ps.EndOfStreamMessage(),
        ps.EndOfStreamMessage("Partition 3"),
        ps.DrainMessage("7a1c9e520b5d"),
        ps.DrainMessage("7a1c9e520b5d", "Partition 3"),
    ]
    lines = golden("intermediate-messages-version1.jsonl").splitlines()
    written = [json.loads(line).encode() for line in lines]
    assert [serde.from_bytes(each) for each in written] == messages
    assert [serde.to_bytes(each) for each in messages] == written
