"""Stored documents and files: below the root of a job, on a host, and in the streams of a job."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from dataclasses import asdict
from typing import Any, TypeAlias

import orjson

from penstock.admin.samza import parse_coordinator_key
from penstock.api.requests import Startpoint
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import QUERY, QuerySection
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.edit import OffsetKey
from penstock.checkpoint.forks import Home
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, decode_record, encode_record
from penstock.checkpoint.samza import CheckpointLogKey, TopicMessage, read_topic_message
from penstock.checkpoint.sections import Section
from penstock.checkpoint.streams import STREAMS, ChangelogStreamMarker, StreamsSection
from penstock.checkpoint.task_values import CheckpointV1, CheckpointV2
from penstock.cli.checkpoint import parse_offsets
from penstock.container.launch import Register
from penstock.drain.requests import DRAIN, DrainSection
from penstock.job.identity import JobIdentity
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.outbox.wing import OUTBOX, OutboxSection
from penstock.start.startpoint_request import (
    StartpointRequest,
    decode_fan_out,
    decode_request,
    decode_startpoint,
    encode_request,
    encode_startpoint,
)
from penstock.state.backends import changelog_partition as partition
from penstock.state.backends.blob import BlobMarker, SnapshotIndex
from penstock.state.backends.changelog_files.versions import (
    ChangelogMarker,
    DeltaHeader,
    StoredVersions,
    StoreSnapshot,
    decode_delta,
    encode_delta,
    ways,
)
from penstock.state.backends.objects import DirIndex, FileBlob, FileIndex
from penstock.state.engines.engine import compress, decode_records, decompress, encode_records
from penstock.state.engines.memory import read_entries
from penstock.state.restore import Description, read_description
from penstock.system.local.files import StreamInfo, _parse
from penstock.wire.containers import ContainerAddress
from tests.support.parsers.parser import Parser, golden, of_file, of_text
from tests.support.tools.places import GOLDEN

SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def delta_file(head: bytes) -> bytes:
    whole = (GOLDEN / "delta-format1.delta").read_bytes()
    (size,) = struct.unpack(">i", whole[8:12])
    body = whole[:8] + struct.pack(">i", len(head)) + head + whole[12 + size : -32]
    return body + hashlib.sha256(body).digest()


def delta_head() -> bytes:
    whole = (GOLDEN / "delta-format1.delta").read_bytes()
    (size,) = struct.unpack(">i", whole[8:12])
    return whole[12 : 12 + size]


def snapshot_file(index: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("snapshot.json", index)
        archive.writestr("files/CURRENT", b"MANIFEST-000005\n")
        archive.comment = b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def snapshot_index() -> bytes:
    with zipfile.ZipFile(GOLDEN / "snapshot-format1.zip") as archive:
        return archive.read("snapshot.json")


def with_checksum(data: bytes) -> bytes:
    """A record whose checksum fits, unless the document is no object at all."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(document, dict):
        return data
    document.pop("checksum", None)
    body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(document | {"checksum": "sha256:" + hashlib.sha256(body).hexdigest()})


def used_marker(data: bytes) -> ChangelogMarker:
    """A marker, after the questions that a restore asks of it."""
    marker = ChangelogMarker.parse(data.decode(errors="replace"))
    for way in ways(marker, StoredVersions(frozenset({(8, 1)}), frozenset())):
        way.missing(StoredVersions(frozenset(), frozenset()))
    return marker


FILE = FileIndex("000008.sst", 8, SHA, (FileBlob(f"2-1700000000000-7-{SHA}", 0), FileBlob(f"3-5-7-{SHA}", 4)))
INDEX = SnapshotIndex(
    str(CheckpointId(1700000000000, 7)), 1, "job", "1", 3, "s", 2, "1-5-6.index", DirIndex.of({"a/b": FILE, "c": FILE})
)
LEASE = LeaseState(LeaseHolder("h", 7, "12", "b", "pid:[1]", "run", "2026-01-01T00:00:00+00:00"), 10_000, "t0k", 3)

ADDRESS = ContainerAddress("7-0", "00ff", "m", 8, 7, "grpc+unix:///tmp/s", "grpc://h:1", "/tmp/log", (0, 3), "driver")


WholeRecord: TypeAlias = tuple[CheckpointRecord, DrainSection, OutboxSection, QuerySection, StreamsSection, TimeSection]


def whole_record(data: bytes) -> tuple[object, ...]:
    record = decode_record(data, "k")
    assert isinstance(record, CheckpointRecord)
    own: tuple[Section[Any], ...] = (DRAIN, OUTBOX, QUERY, STREAMS, TIME)
    return (record, *(record.section(each) for each in own))


def with_hash(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def with_digits(data: bytes) -> bytes:
    return data + hashlib.sha256(data).hexdigest().encode()


STORED = {
    "delta": Parser(
        lambda d: decode_delta(d, "k"),
        [each[:-32] for each in golden("delta-format1.delta")],
        again=lambda found: encode_delta(*found),
        kind=tuple[DeltaHeader, dict[bytes, bytes | None]],
        wrap=with_hash,
    ),
    "head of a delta": Parser(lambda d: decode_delta(d, "k")[0], [delta_head()], kind=DeltaHeader, wrap=delta_file),
    "bytes of a delta": Parser(
        lambda d: decode_delta(d, "k"), golden("delta-format1.delta"), again=lambda found: encode_delta(*found)
    ),
    "records": Parser(lambda d: decode_records(d, "k"), [b"\0\0\0\1k\0\0\0\2vv\xff\xff\xff\xff"], again=encode_records),
    "zstd": Parser(lambda d: decompress(d, 3000, "k"), [compress(b"abc" * 1000)]),
    "copy of an engine": Parser(
        of_file("entries.zst", read_entries), [each[:-32] for each in golden("memory-copy-format2.zst")], wrap=with_hash
    ),
    "snapshot": Parser(
        lambda d: StoreSnapshot.decode(d, "k"),
        [each[:-64] for each in golden("snapshot-format1.zip")],
        again=StoreSnapshot.encode,
        kind=StoreSnapshot,
        wrap=with_digits,
    ),
    "index of a snapshot": Parser(
        lambda d: StoreSnapshot.decode(d, "k"),
        [snapshot_index()],
        again=StoreSnapshot.encode,
        kind=StoreSnapshot,
        wrap=snapshot_file,
    ),
    "blob index": Parser(
        lambda d: SnapshotIndex.decode(d, "k"),
        [INDEX.encode(), *golden("blob-index-format1.json")],
        again=SnapshotIndex.encode,
        kind=SnapshotIndex,
    ),
    "changelog-files marker": Parser(
        used_marker,
        golden("changelog-files-marker-format1.json"),
        again=lambda found: found.serialize().encode(),
        kind=ChangelogMarker,
    ),
    "blob marker": Parser(
        lambda d: BlobMarker.parse(d.decode(errors="replace")),
        golden("blob-marker-format1.json"),
        again=lambda found: found.serialize().encode(),
        kind=BlobMarker,
    ),
    "changelog-stream marker": Parser(
        of_text(partition.ChangelogRange.parse),
        golden("changelog-marker-generation.json", "changelog-marker-empty.json"),
        again=lambda found: found.serialize().encode(),
        kind=partition.ChangelogRange,
    ),
    "Samza's marker": Parser(
        of_text(ChangelogStreamMarker.parse),
        golden("changelog-marker.json", "changelog-marker-empty.json"),
        again=lambda found: found.serialize().encode(),
        kind=ChangelogStreamMarker,
    ),
    "V1": Parser(
        CheckpointV1.decode,
        golden("task-checkpoint-v1.json"),
        again=lambda found: found.encode().encode(),
        kind=CheckpointV1,
    ),
    "V2": Parser(
        CheckpointV2.decode,
        golden("checkpoint-v2.json", "task-checkpoint-v2.json"),
        again=lambda found: found.encode().encode(),
        kind=CheckpointV2,
    ),
    "checkpoint key": Parser(
        CheckpointLogKey.decode,
        golden("checkpoint-key-v2.json", "checkpoint-key-v1.json"),
        again=lambda found: found.encode().encode(),
        kind=CheckpointLogKey,
    ),
    "claim": Parser(
        lambda d: decode_record(d, "k"), golden("log-claim-format10.json"), again=encode_record, wrap=with_checksum
    ),
    "checkpoint": Parser(
        whole_record,
        golden("log-record-format10.json"),
        again=lambda found: encode_record(found[0]),
        kind=WholeRecord,
        wrap=with_checksum,
    ),
    "checkpoint of format 9": Parser(
        whole_record,
        golden("log-record-format9.json"),
        again=lambda found: encode_record(found[0]),
        kind=WholeRecord,
        wrap=with_checksum,
    ),
    "label": Parser(
        lambda d: decode_record(d, "k"), golden("log-label-format10.json"), again=encode_record, wrap=with_checksum
    ),
    "home of a fork": Parser(
        lambda d: Home.decode(d, "k"), golden("fork-home-format1.json"), again=Home.encode, kind=Home
    ),
    "bytes of a checkpoint": Parser(
        lambda d: decode_record(d, "k"), golden("log-record-format10.json"), again=encode_record
    ),
    "lease": Parser(lambda d: LeaseState.decode(d, "k"), [LEASE.encode()], again=LeaseState.encode, kind=LeaseState),
    "startpoint": Parser(
        decode_startpoint,
        golden(*(f"startpoint-{kind}.json" for kind in ("timestamp", "oldest", "specific", "upcoming"))),
        again=lambda found: encode_startpoint(found).encode(),
        kind=Startpoint,
    ),
    "startpoint request": Parser(
        lambda d: decode_request("local.a.0", "u", d),
        golden("startpoint-request.json"),
        again=encode_request,
        kind=StartpointRequest,
    ),
    "fan-out": Parser(decode_fan_out, golden("startpoint-fan-out.json"), kind=dict[SystemStreamPartition, Startpoint]),
    "coordinator key": Parser(
        of_text(parse_coordinator_key), golden("startpoint-coordinator-key.json"), kind=tuple[str, str]
    ),
    "local copy": Parser(
        lambda d: read_description(d, "k"), golden("local-copy-format2.json"), kind=Description | None
    ),
    "identity": Parser(
        lambda d: JobIdentity.decode(d, "k"),
        golden("identity-format1.json"),
        again=JobIdentity.encode,
        kind=JobIdentity,
    ),
    "containers": Parser(
        of_file("containers", lambda file: tuple(Register(file).read())),
        [orjson.dumps([asdict(ADDRESS)])],
        kind=tuple[ContainerAddress, ...],
    ),
    "Samza's message": Parser(of_text(read_topic_message), [b'{"key":"k","value":"v"}'], kind=TopicMessage),
    "next offsets": Parser(
        of_text(lambda text: parse_offsets(text, "f")),
        [b'{"tasks":[{"task":0,"nextOffsets":{"local.a.0":3}}]}'],
        kind=dict[OffsetKey, int],
    ),
    "local stream": Parser(lambda d: _parse(d, "k"), [b'{"format":1,"partitions":4,"uid":"00ff"}'], kind=StreamInfo),
}
