"""Whatever stands in a stored document under a checksum that fits: it is read, or refused with an error of Penstock, so
that the next backend, copy or checkpoint can be tried."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import struct
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from penstock.admin.coordinator_stream import parse_coordinator_key
from penstock.api.requests import Startpoint
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import QUERY, QuerySection
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.edit import OffsetKey
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, decode_record
from penstock.checkpoint.samza import CheckpointLogKey, TopicMessage, read_topic_message
from penstock.checkpoint.sections import Section
from penstock.checkpoint.streams import STREAMS, ChangelogStreamMarker, StreamsSection
from penstock.checkpoint.task_values import CheckpointV1, CheckpointV2
from penstock.cli.checkpoint import parse_offsets
from penstock.container.process import launch
from penstock.container.process import launch as launch_module
from penstock.container.process.launch import Register
from penstock.drain.requests import DRAIN, DrainSection
from penstock.errors import CorruptError, PenstockError
from penstock.host.posix import ExecutorProcess
from penstock.job.identity import JobIdentity
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.outbox.wing import OUTBOX, OutboxSection
from penstock.spark.state_import.checkpoint import OperatorFacts
from penstock.spark.state_import.checkpoint import _operator as spark_operator
from penstock.spark.state_import.files import EntrySchema, read_schema
from penstock.spark.state_import.reader import ChangelogHead, read_head
from penstock.start.startpoints.request import StartpointRequest, decode_fan_out, decode_request, decode_startpoint
from penstock.state.backends.blob import BlobMarker, SnapshotIndex
from penstock.state.backends.changelog_files.versions import (
    ChangelogMarker,
    DeltaHeader,
    StoredVersions,
    StoreSnapshot,
    decode_delta,
    ways,
)
from penstock.state.backends.changelog_stream import partition
from penstock.state.backends.objects import DirIndex, FileBlob, FileIndex
from penstock.state.engines.memory import MemoryEngine
from penstock.state.records import compress
from penstock.state.restore import read_description
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.system.local.files import StreamInfo, _parse
from penstock.wire.containers import ContainerAddress, ContainerSpec, LaunchFailure
from tests.support.faults.damaged_bytes import memory_budget
from tests.support.tools.places import GOLDEN
from tests.support.tools.profiles import examples

BUDGET = 16 << 20
SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


@dataclass(frozen=True, slots=True)
class Format:
    """A golden document, how the file around it is made, and how that is read as what."""

    document: Any
    read: Callable[[bytes], object]
    reads: Any
    wrap: Callable[[bytes], bytes] = bytes


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes().strip()


def delta_file(head: bytes) -> bytes:
    whole = (GOLDEN / "delta-format1.delta").read_bytes()
    (size,) = struct.unpack(">i", whole[8:12])
    body = whole[:8] + struct.pack(">i", len(head)) + head + whole[12 + size : -32]
    return body + hashlib.sha256(body).digest()


def delta_head() -> Any:
    whole = (GOLDEN / "delta-format1.delta").read_bytes()
    (size,) = struct.unpack(">i", whole[8:12])
    return orjson.loads(whole[12 : 12 + size])


def snapshot_file(index: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("snapshot.json", index)
        archive.writestr("files/CURRENT", b"MANIFEST-000005\n")
        archive.comment = b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def snapshot_index() -> Any:
    with zipfile.ZipFile(GOLDEN / "snapshot-format1.zip") as archive:
        return orjson.loads(archive.read("snapshot.json"))


def with_checksum(data: bytes) -> bytes:
    """A record whose checksum fits, unless the document is no object at all."""
    document = orjson.loads(data)
    if not isinstance(document, dict):
        return data
    document.pop("checksum", None)
    body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(document | {"checksum": "sha256:" + hashlib.sha256(body).hexdigest()})


def used_marker(data: bytes) -> ChangelogMarker:
    """A marker, after the questions that a restore asks of it."""
    marker = ChangelogMarker.parse(data.decode())
    for way in ways(marker, StoredVersions(frozenset({(8, 1)}), frozenset())):
        way.missing(StoredVersions(frozenset(), frozenset()))
    return marker


FILE = FileIndex("000008.sst", 8, SHA, (FileBlob(f"2-1700000000000-7-{SHA}", 0), FileBlob(f"3-5-7-{SHA}", 4)))
INDEX = SnapshotIndex(
    str(CheckpointId(1700000000000, 7)), 1, "job", "1", 3, "s", 2, "1-5-6.index", DirIndex.of({"a/b": FILE, "c": FILE})
)
LEASE = LeaseState(LeaseHolder("h", 7, "12", "b", "pid:[1]", "run", "2026-01-01T00:00:00+00:00"), 10_000, "t0k", 3)

ADDRESS = ContainerAddress("7-0", "00ff", "m", 8, 7, "grpc+unix:///tmp/s", "grpc://h:1", "/tmp/log", (0, 3), "driver")


def read_register(data: bytes) -> tuple[ContainerAddress, ...]:
    with NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        return tuple(Register(Path(file.name)).read())


WholeRecord: TypeAlias = tuple[CheckpointRecord, DrainSection, OutboxSection, QuerySection, StreamsSection, TimeSection]


def whole_record(data: bytes) -> tuple[object, ...]:
    record = decode_record(data, "k")
    assert isinstance(record, CheckpointRecord)
    own: tuple[Section[Any], ...] = (DRAIN, OUTBOX, QUERY, STREAMS, TIME)
    return (record, *(record.section(each) for each in own))


FORMATS: dict[str, Format] = {
    "delta": Format(delta_head(), lambda d: decode_delta(d, "k")[0], DeltaHeader, delta_file),
    "snapshot": Format(snapshot_index(), lambda d: StoreSnapshot.decode(d, "k"), StoreSnapshot, snapshot_file),
    "blob index": Format(orjson.loads(INDEX.encode()), lambda d: SnapshotIndex.decode(d, "k"), SnapshotIndex),
    "changelog-files marker": Format(
        orjson.loads(golden("changelog-files-marker-format1.json")), used_marker, ChangelogMarker
    ),
    "blob marker": Format(
        {"format": 1, "index": "1-5-6.index", "sha256": SHA}, lambda d: BlobMarker.parse(d.decode()), BlobMarker
    ),
    "changelog-stream marker": Format(
        orjson.loads(golden("changelog-marker-generation.json")),
        lambda d: partition.ChangelogRange.parse(d.decode()),
        partition.ChangelogRange,
    ),
    "Samza's marker": Format(
        orjson.loads(golden("changelog-marker.json")),
        lambda d: ChangelogStreamMarker.parse(d.decode()),
        ChangelogStreamMarker,
    ),
    "V1": Format(orjson.loads(golden("task-checkpoint-v1.json")), CheckpointV1.decode, CheckpointV1),
    "V2": Format(orjson.loads(golden("checkpoint-v2.json")), CheckpointV2.decode, CheckpointV2),
    "checkpoint key": Format(orjson.loads(golden("checkpoint-key-v2.json")), CheckpointLogKey.decode, CheckpointLogKey),
    "claim": Format(
        orjson.loads(golden("log-claim-format10.json")), lambda d: decode_record(d, "k"), Claim, with_checksum
    ),
    "checkpoint": Format(orjson.loads(golden("log-record-format10.json")), whole_record, WholeRecord, with_checksum),
    "checkpoint of format 9": Format(
        orjson.loads(golden("log-record-format9.json")), whole_record, WholeRecord, with_checksum
    ),
    "lease": Format(orjson.loads(LEASE.encode()), lambda d: LeaseState.decode(d, "k"), LeaseState),
    "startpoint": Format(orjson.loads(golden("startpoint-timestamp.json")), decode_startpoint, Startpoint),
    "startpoint request": Format(
        orjson.loads(golden("startpoint-request.json")),
        lambda d: decode_request("local.a.0", "u", d),
        StartpointRequest,
    ),
    "fan-out": Format(
        orjson.loads(golden("startpoint-fan-out.json")),
        lambda d: decode_fan_out(d),
        dict[SystemStreamPartition, Startpoint],
    ),
    "coordinator key": Format(
        orjson.loads(golden("startpoint-coordinator-key.json")),
        lambda d: parse_coordinator_key(d.decode(errors="replace")),
        tuple[str, str],
    ),
    "local copy": Format(
        {"format": 1, "files": {"CURRENT": [16, SHA], "sub/000008.sst": [4, SHA]}},
        lambda d: read_description(d, "k"),
        dict[str, tuple[int, str]] | None,
    ),
    "identity": Format(
        orjson.loads(JobIdentity("00ff", "file:///jobs/a-1").encode()),
        lambda d: JobIdentity.decode(d, "k"),
        JobIdentity,
    ),
    "containers": Format([asdict(ADDRESS)], read_register, tuple[ContainerAddress, ...]),
    "Samza's message": Format(
        {"key": "k", "value": "v"}, lambda d: read_topic_message(d.decode(errors="replace")), TopicMessage
    ),
    "next offsets": Format(
        {"tasks": [{"task": 0, "nextOffsets": {"local.a.0": 3}}]},
        lambda d: parse_offsets(d.decode(errors="replace"), "f"),
        dict[OffsetKey, int],
    ),
    "Spark's operator": Format(
        {
            "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateExec"},
            "stateStoreInfo": [
                {
                    "storeName": "default",
                    "numColsPrefixKey": 0,
                    "numPartitions": 5,
                    "stateSchemaFilePaths": ["file:/a/schema"],
                }
            ],
            "operatorPropertiesJson": '{"stateVariables":[{"stateName":"a","stateVariableType":"ValueState"}]}',
        },
        lambda d: spark_operator(0, d, "k"),
        OperatorFacts,
    ),
    "Spark's schema": Format(
        {
            "type": "struct",
            "fields": [
                {"name": "a", "type": {"type": "array", "elementType": "decimal(10,2)", "containsNull": True}},
                {"name": "a", "type": {"type": "map", "keyType": "string", "valueType": {"type": "udt", "class": "x"}}},
            ],
        },
        lambda d: read_schema(d, "k"),
        dict[str, EntrySchema],
        lambda d: struct.pack(">H2sH", 2, b"v1", len(d)) + d + struct.pack(">H", len(d)) + d,
    ),
    "Spark's lineage": Format(
        [{"version": 1, "checkpointUniqueId": "a-b"}],
        lambda d: read_head(compress(b"\x00\x02v3" + struct.pack(">H", len(d)) + d), "k"),
        ChangelogHead,
    ),
    "local stream": Format({"format": 1, "partitions": 4, "uid": "00ff"}, lambda d: _parse(d, "k"), StreamInfo),
}

DEEP = b'{"files-present":[],"dir-name":"x","sub-dirs-present":[' * 400 + b"]}" * 400
VALUES: list[Any] = [
    *(None, True, False, "", "x", "0", "-1", "../../x", "a\0b", "1" * 40, "1-1", "\u0661", "kafka.a.-1", "\ud7ff"),
    *(0, 1, 2, 3, -1, -5, 2**31, 2**53, 2**62, 2**63, 2**64 - 1, 1.5, 1e300, -0.0),
    *([], [[]], [None], [1, 2], ["a", "b"], [[1, 1, 2**60]], {}, {"": None}, {"x": []}, {"0": {}}, [0] * 50),
]


def paths(document: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, value in entries:
        yield from ((key, *rest) for rest in paths(value))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the document with the value at the path."""
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = replaced(document[path[0]], path[1:], value)
    return changed


def without(document: Any, path: tuple[Any, ...]) -> Any:
    """A copy of the document with nothing at the path."""
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    changed = dict(parent) if isinstance(parent, dict) else list(parent)
    del changed[path[-1]]
    return replaced(document, path[:-1], changed)


@cache
def hints_of(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast("type", kind))


_EXACT: dict[Any, type] = {None: NoneType, NoneType: NoneType, int: int}
"""Types whose values are of no other class: a bool is no number."""


def conforms(value: object, hint: Any) -> bool:
    """True if a value is what its declaration says, all the way down."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or origin is Literal:
        return hint is Any or value in arguments
    if origin in {Union, UnionType}:
        return any(conforms(value, each) for each in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(conforms(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(conforms, value, arguments))
    if origin is frozenset:
        return isinstance(value, frozenset) and all(conforms(each, arguments[0]) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            conforms(key, arguments[0]) and conforms(each, arguments[1]) for key, each in value.items()
        )
    if hint in _EXACT:
        return type(value) is _EXACT[hint]
    if not isinstance(value, hint):
        return False
    own = hints_of(cast("Hashable", type(value))) if is_dataclass(value) or isinstance(value, Struct) else {}
    return all(conforms(getattr(value, name), own[name]) for name in own if not name.startswith("_"))


def check(form: Format, document: Any) -> None:
    """It is read as a value whose fields are what they are declared to be, or it is an error of Penstock."""
    data = form.wrap(orjson.dumps(document))
    try:
        found = form.read(data)
    except PenstockError:
        return
    assert form.reads in {Claim, CheckpointRecord} or conforms(found, form.reads), found
    assert conforms(found, type(found)) if is_dataclass(found) else True, found


@pytest.mark.parametrize("name", FORMATS)
def test_the_golden_document_is_read(name: str) -> None:
    form = FORMATS[name]
    found = form.read(form.wrap(orjson.dumps(form.document)))
    assert conforms(found, form.reads), found


@pytest.mark.attack
@pytest.mark.parametrize("name", FORMATS)
def test_any_value_at_any_place_is_read_or_refused(name: str) -> None:
    form = FORMATS[name]
    for path in paths(form.document):
        for value in VALUES:
            check(form, replaced(form.document, path, value))
        if path:
            check(form, without(form.document, path))


@pytest.mark.attack
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_nested_deeply_is_refused(name: str) -> None:
    form = FORMATS[name]
    wrap = bytes if form.wrap is with_checksum else form.wrap  # a checksum of it cannot be computed
    for path in paths(form.document):
        text = orjson.dumps(replaced(form.document, path, "DEEP")).replace(b'"DEEP"', DEEP)
        with suppress(PenstockError):
            form.read(wrap(text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.attack
@given(st.data())
@examples(6)
def test_any_json_at_any_places_is_read_or_refused(data: st.DataObject) -> None:
    form = FORMATS[data.draw(st.sampled_from(sorted(FORMATS)))]
    document = form.document
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(document))))
        document = replaced(document, path, data.draw(JSON | st.sampled_from(VALUES)))
    check(form, document)


@pytest.mark.attack
@given(st.binary(max_size=200))
@examples(2)
def test_any_bytes_are_refused(data: bytes) -> None:
    for name, form in FORMATS.items():
        if form.wrap is bytes and "marker" not in name and name != "identity":  # once, a uid was any word
            try:
                form.read(data)
            except PenstockError:
                continue
            json.loads(data)  # by chance


@pytest.mark.parametrize("size", [1 << 33, 1 << 40, (1 << 63) - 1])
def test_a_size_is_not_believed_before_it_was_checked(tmp_path: Path, size: int) -> None:
    """Memory is taken for what is there, not for what a header claims."""
    form = FORMATS["delta"]
    entries = MemoryEngine()
    entries.apply({b"key": b"value"})
    entries.copy_to(tmp_path / "copy")
    (copy,) = (tmp_path / "copy").iterdir()
    written = copy.read_bytes()[:-32]
    claim = written[:8] + size.to_bytes(8, "big") + written[16:]
    with memory_budget(BUDGET):
        with pytest.raises(CorruptError, match="claims"):
            form.read(form.wrap(orjson.dumps(form.document | {"size": size})))
        copy.write_bytes(claim + hashlib.sha256(claim).digest())
        with pytest.raises(CorruptError, match="claims"):
            MemoryEngine(tmp_path / "copy")


# Local streams: SQLite holds no column to its type.

SSP = SystemStreamPartition("local", "s", 0)
CELLS = ["text", b"blob", 1.5, -1, 0, 7, 2**62]


@pytest.mark.attack
@pytest.mark.few(30)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("head", column) for column in ("format", "uid", "partition", "upcoming")),
        *(("fence", "epoch"), ("peak", "offset")),
        *(("compacted", column) for column in ("start_offset", "end_offset", "kept")),
    ],
)
@pytest.mark.parametrize("value", CELLS, ids=repr)
def test_any_value_in_a_partition_is_read_or_refused(tmp_path: Path, table: str, column: str, value: object) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin, writer = system.admin(), system.writer(WriterIdentity("w", 3))
    admin.create_stream("s", 1)
    writer.append(SSP, [(n, b"k", b"v") for n in range(4)])
    admin.compact(OffsetRange(SSP, 0, 3), WriterIdentity("w", 3))
    admin.close()
    writer.close()
    with sqlite3.connect(tmp_path / "s" / "0.db") as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.close()

    def read() -> object:
        reader = system.reader()
        return [list(reader.read_compacted(OffsetRange(SSP, 0, 4), 2)), list(reader.read(OffsetRange(SSP, 3, 4), 2))]

    calls: list[Callable[[], object]] = [
        lambda: system.admin().offsets("s"),
        lambda: system.admin().offset_at_time(SSP, 2),
        lambda: system.admin().compact(OffsetRange(SSP, 1, 3), WriterIdentity("w", 4)),
        lambda: system.admin().fence("s", WriterIdentity("w", 4)),
        lambda: system.writer(WriterIdentity("w", 4)).append(SSP, [(9, b"k", b"v")]),
        read,
    ]
    for call in calls:
        try:
            call()
        except PenstockError:
            continue


def test_a_uid_that_cannot_be_part_of_a_name_is_refused() -> None:
    """It would become a part of names of folders and streams; and an error quotes little of a large document."""
    for uid in ("", "../../x", "a b", "a\0", "x" * 65, "x" * (1 << 20), "\u0661"):
        with pytest.raises(CorruptError, match="is not the identity of a job") as caught:
            JobIdentity.decode(orjson.dumps({"format": 1, "uid": uid, "folder": None}), "k")
        assert len(str(caught.value)) < 2000


def test_a_register_that_is_too_large_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_LARGEST", 1 << 20)
    large = Register(tmp_path / "register.json")
    with large.path.open("wb") as file:
        file.truncate(1 << 30)
    with memory_budget(BUDGET), pytest.raises(CorruptError, match="it has more than"):
        large.read()


def test_an_executor_with_a_damaged_register_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start more beside those that run, and leave lost ones alive."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(launch, "own_executor", lambda: ExecutorProcess(7, "3", "h", None))
    spec = ContainerSpec("run", "secret", None, str(tmp_path))
    (tmp_path / "penstock-run-7.json").write_bytes(b'[{"pid":"8"}]')
    (failure,) = launch.ensure_containers(spec, 1, 1.0, frozenset(), {})
    assert isinstance(failure, LaunchFailure)
    assert failure.executor_id == "3"
    assert "penstock-run-7.json, is damaged" in failure.reason
