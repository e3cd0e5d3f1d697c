"""Messages, packets, entries of stores, and files of rows with some bytes changed: each is read, or refused with an
error of Penstock, within a budget of memory and without work that grows faster than the bytes.

A serde may raise anything: a message that it does not read becomes a SerdeError, and an entry of an operator's store
that cannot be read is a failure of that operator.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

import penstock as ps
from penstock.admin.stream.records import read_lines
from penstock.api.messages import pack_headers
from penstock.api.serdes.values import JsonKey, OrderedDouble, OrderedInteger, OrderedLong
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import END_OF_TIME, Batch
from penstock.config.sources import from_file
from penstock.drain.requests import decode_notification
from penstock.drain.wing import drain_board
from penstock.errors import FailedMessage, PenstockError
from penstock.graph.event_time import VersionKey, VersionValue, join_of
from penstock.graph.stores import StoreSpec
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.snapshot import CounterValue, MetricId, Snapshot
from penstock.objects.open import open_store
from penstock.outbox import task as outbox_objects
from penstock.outbox.wing import OutboxObject, OutputPart, Publish
from penstock.runtime.joins import EveryRow, NewestRow, sides_of
from penstock.runtime.messages.incoming import read_trailer
from penstock.runtime.messages.packet import (
    MESSAGE_SCHEMA,
    Packet,
    PacketKind,
    decode_messages,
    encode_messages,
    from_batch,
    pack_places,
    to_batch,
    unpack_places,
    with_headers,
)
from penstock.runtime.messages.stored import decode_dead_letter, encode_dead_letter, read_user_messages
from penstock.runtime.reports import Report
from penstock.runtime.timers import Timers, key_and_name, place_of
from penstock.runtime.windows.cells import Cells, WindowSlot
from penstock.runtime.windows.contents import content_of
from penstock.side.engine import SidePositions, decode_positions, encode_positions
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.keys import KeyCodec, chunk, rows_of
from penstock.spark.state_import import files
from penstock.spark.state_import.rows import row_decoder
from penstock.spark.workers.worker import PacketSerializer
from penstock.standby.wing import StandbyState
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.serdes import SerdeStore
from penstock.state.stores.timed_entries import META, engine_key, header, index_key, live_view, meta_bytes
from penstock.system.base import Progress
from penstock.system.files.folders import Folder
from penstock.system.files.formats import Format, SourceFile, read_rows
from penstock.system.files.listing import Listing
from penstock.system.files.manifests import PartitionLog, noted_partitions, number_of
from penstock.system.kafka.fences import OwnersTopic
from penstock.system.kafka.job_topic import JobTopic, fence_record, producer_record, progress_record
from penstock.system.rows.schema import parse_schema
from penstock.tables.files import VersionProblem
from penstock.tables.manifest import TableFile, TableFingerprint, TableManifest
from penstock.wing import calls
from penstock.wire.calls import CALLS
from penstock.wire.protocol import AttemptCall, Beat, EndBatch, Identity, UploadResult, dump, load, raw
from tests.support.faults.damaged_bytes import damaged, grows_too_fast, memory_budget
from tests.support.streams.trailers import trailer
from tests.support.tools.profiles import examples

BUDGET = 32 << 20
"""Far more than any of these small messages needs."""
Entry = tuple[bytes, bytes]
SSP = SystemStreamPartition("local", "s", 0)


@dataclass(frozen=True, slots=True)
class Codec:
    """A reader of bytes, some valid ones, and the errors it raises for others."""

    read: Callable[[bytes], object]
    whole: list[bytes]
    refuses: type[Exception] = PenstockError

    def read_or_refuse(self, data: bytes) -> None:
        try:
            self.read(data)
        except MemoryError:
            raise
        except self.refuses:
            pass


# Packets and calls between processes.

MESSAGES = pa.record_batch([[b"k", None], [b"value", b""], [1, 2], [3, 4], [5, 6]], schema=MESSAGE_SCHEMA)
PAYLOAD = bytes(encode_messages(MESSAGES))
HEADED = bytes(encode_messages(with_headers(MESSAGES, pa.array([pack_headers((("trace", b"7f"),)), None]))))
TRAILER = trailer((0, 3), 1, 2, token="token", dest=1)
PACKETS = [
    Packet(0, 1, PacketKind.DATA, 0, 3, "token", 0, 3, 0, 2, PAYLOAD),
    TRAILER,
]
FAILED = FailedMessage("local.trips", 0, 7, "k", "task", "ValueError: no", "")
ROWS = pa.record_batch({"n": [1, 2], "names": [["a", None], []], "of": [{"x": "y"}, None]})


def read_messages(data: bytes) -> list[list[Any]]:
    return [column.to_pylist() for column in decode_messages(data).columns]


PLACES = pack_places([np.array(column, np.int64) for column in ([1, 900], [3, 3], [5, 2**40])])


def frames() -> bytes:
    stream = io.BytesIO()
    PacketSerializer().dump_stream(iter([to_batch(PACKETS)]), stream)
    return stream.getvalue()


def read_frames(data: bytes) -> None:
    """A truncated frame is an EOFError, by which the driver knows that Spark has died."""
    with suppress(EOFError):
        for batch in PacketSerializer().load_stream(io.BytesIO(data)):
            for packet in from_batch(batch):
                if packet.kind == PacketKind.DATA and packet.payload is not None:
                    read_messages(packet.payload)


CONTENTS = outbox_objects.ObjectContents(
    "k", (outbox_objects.Chunk(SSP, 0, 4, len(PAYLOAD) + len(HEADED), (PAYLOAD, HEADED)),), bytes
)
NAMED, OUTBOX = outbox_objects.encode(CONTENTS, 0)


def read_outbox(data: bytes) -> None:
    """With the hash that the checkpoint log would have of it."""
    named = OutboxObject(NAMED.key, 0, len(data), sha256(data).hexdigest(), {SSP: OutputPart(1, 4)})
    contents = outbox_objects.decode(named, data)
    for part in contents.chunks:
        list(contents.records(part))


UPLOADED = {"0": {"blob": {"s": "m"}}}
IDENTITY, BATCH = Identity("00ff", 7), Batch(number=3, run=1, time_ms=5, firing={"w": 4})
STANDBYS = raw([StandbyState(0, None, "", "")])
BEAT = Beat("7-0", "00ff", 1, 2, 3, metrics=[("a", "b", "c", "counter", (1,))], wings={"standby": STANDBYS})
REQUESTS = {
    "end": EndBatch(BATCH, {0: {1: "token"}}),
    "publish": Publish(3, (NAMED,), -1),
}


def request_reader(name: str) -> Callable[[bytes], object]:
    request: Any = calls()[name].request
    return lambda data: load(tuple[Identity, request], data)


BETWEEN = {
    "messages": Codec(read_messages, [PAYLOAD, HEADED]),
    "names in a trailer": Codec(lambda data: read_trailer(TRAILER._replace(payload=data)), [TRAILER.payload or b""]),
    "counts in a trailer": Codec(lambda data: read_trailer(TRAILER._replace(places=data)), [TRAILER.places or b""]),
    "places": Codec(lambda data: unpack_places(data, 3, 2), [PLACES]),
    "frames of packets": Codec(read_frames, [frames()]),
    "report": Codec(Report.decode, [bytes(Report(1, 2, "t", {0: 7}, failed=FAILED).packet().payload or b"")]),
    "outbox object": Codec(read_outbox, [OUTBOX]),
    "attempt call": Codec(lambda d: load(AttemptCall, d), [dump(AttemptCall(IDENTITY, BATCH, 1, [0, 1]))]),
    **{
        f"call {name}": Codec(
            request_reader(name),
            [calls()[name].encode(IDENTITY, request)],
        )
        for name, request in REQUESTS.items()
    },
    "answer beat": Codec(CALLS["beat"].decode, [dump(BEAT)]),
    "state of standbys": Codec(lambda d: load(list[StandbyState], d), [bytes(STANDBYS)]),
    "answer upload": Codec(
        CALLS["upload"].decode, [dump(UploadResult({"0": {"blob": {"s": "m"}}}, {"outbox": raw((NAMED,))}))]
    ),
    "what was uploaded of an outbox": Codec(lambda d: load(tuple[OutboxObject, ...], d), [dump((NAMED,))]),
    "rows in chunks": Codec(lambda d: rows_of([d], ROWS.schema).to_pylist(), [chunk(ROWS)]),
    "reason of a table build": Codec(VersionProblem.decode, [b'["no such column",3]']),
}

# Messages of streams that Penstock itself writes. Others may write to their topics, too.


def read_topic(topic: JobTopic | OwnersTopic, data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    topic.add(key, value or None)


TOPIC_RECORDS = [fence_record(3), producer_record("t-1", 4), progress_record(SSP, Progress(1, 2))]
STREAMS = {
    "dead letter": Codec(decode_dead_letter, [encode_dead_letter(FAILED, b"k", b"\xff", repartitioned=True)]),
    "intermediate stream": Codec(
        lambda d: read_user_messages([(0, 1, None, d)]),
        [ps.IntermediateMessageSerde(ps.Json()).to_bytes(each) for each in (ps.DrainMessage("r"), {"a": 1})],
    ),
    "job topic": Codec(lambda d: read_topic(JobTopic("t"), d), [b"\n".join(each) for each in TOPIC_RECORDS]),
    "owners topic": Codec(
        lambda d: read_topic(OwnersTopic(), d), [b'owner/id/claim\n{"format":1,"stream":"s","owner":"o"}']
    ),
}

# Serdes.

SERDES: list[tuple[ps.Serde[Any], Any]] = [
    (ps.String(), "Zürich"),
    (ps.Bytes(), b"abc"),
    *((serde, 517) for serde in (ps.Integer(), ps.Long(), ps.SamzaInteger(), ps.SamzaLong())),
    *((serde, -2.5) for serde in (ps.Double(), ps.SamzaDouble(), OrderedDouble())),
    (OrderedInteger(), -3),
    (OrderedLong(), 4),
    *((serde, {"a": [1, 2.5, None, "b"]}) for serde in (ps.Json(), JsonKey())),
    (ps.Tuple(ps.String(), ps.Long(), ps.Bytes()).for_store_keys(), ("a\0b", 2, b"\0\xff")),
    (VersionKey(ps.String()), ("k", 7)),
    (VersionValue(ps.Json()), {"a": 1}),
    (ps.IntermediateMessageSerde(ps.String()), ps.WatermarkMessage(60_000)),
]
SCHEMA = (
    StructType()
    .add("n", LongType())
    .add("s", StringType())
    .add("d", DecimalType(10, 2))
    .add("a", ArrayType(StringType()))
    .add("m", MapType(StringType(), ArrayType(LongType())))
)
ROW_CODEC, KEY_CODEC = RowCodec(SCHEMA), KeyCodec(StructType(SCHEMA.fields[:4]))
READ_BY_SERDES = {
    **{
        f"serde {type(serde).__name__}": Codec(serde.from_bytes, [serde.to_bytes(value)], Exception)
        for serde, value in SERDES
    },
    "row of a processor": Codec(
        ROW_CODEC.decode,
        [ROW_CODEC.encode((1, "s", None, ["x", None], {"k": [1]})), ROW_CODEC.encode((None,) * 5)],
        Exception,
    ),
    "key of a processor": Codec(KEY_CODEC.decode, [KEY_CODEC.encode((1, "s", None, ["x"]))], Exception),
}

# Entries of the stores of operators: keys and values, of which any may be damaged.


def new_store(entries: Iterable[Entry] = ()) -> SerdeStore:
    store = SerdeStore(StoreSpec("s", ps.Bytes(), ps.Bytes()), MemoryEngine(), 100)
    store.begin()
    store.put_all(dict(entries))
    return store


def entries_of(store: SerdeStore) -> bytes:
    return msgspec.msgpack.encode(list(store.all()))


def of_entries(use: Callable[[SerdeStore], object], fill: Callable[[SerdeStore], object]) -> Codec:
    def read(data: bytes) -> None:
        with suppress(msgspec.MsgspecError):
            entries = msgspec.msgpack.decode(data, type=list[Entry])
            use(new_store(entries))

    store = new_store()
    fill(store)
    return Codec(read, [entries_of(store)], Exception)


WINDOWS = [
    ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n)),
    ps.Windows.tumbling(10, aggregates={"n": ps.Count(), "mean": ps.Mean(lambda n: n)}),
    ps.Windows.tumbling(10),
]


def fill_windows(store: SerdeStore, window: Any) -> None:
    content = content_of(window, ps.Json())
    cells = Cells(store, content, ps.String())
    for key in (b"\x01k", b"\x00"):
        cell = cells.new(WindowSlot(10, 0, key), complete=False)
        cell.content, cell.messages = content.add(cell.content, 3, 5), 1
        cells.save(cell, 20)
        cells.save_sessions(key, [cell])


def use_windows(store: SerdeStore, window: Any) -> None:
    cells = Cells(store, content_of(window, ps.Json()), ps.String())
    for found in (cells.complete_by(END_OF_TIME), cells.kept_until(END_OF_TIME), cells.triggered_by(END_OF_TIME)):
        for cell in found:
            cells.whole(cell)
    cells.sessions(b"\x01k")


SIDES = sides_of(join_of(10, "outer", "all", None))


def fill_join(store: SerdeStore, kept: Callable[..., EveryRow | NewestRow]) -> None:
    rows = kept(store, SIDES)
    for time_ms in range(0, 30, 3):
        rows.take(SIDES[time_ms % 2], b"k", (time_ms, b"v" * 600))
        rows.save()


def use_join(store: SerdeStore, kept: Callable[..., EveryRow | NewestRow]) -> None:
    rows = kept(store, SIDES)
    for side in SIDES:
        for time_ms in (0, 21):
            rows.take(side, b"k", (time_ms, b"v"))
    with suppress(ValueError):
        rows.at(SIDES[0], b"k", 0)


def fill_timers(store: SerdeStore) -> None:
    for key in (b"a\0b", None):
        Timers(store).set("event", place_of(key, "name"), 5)


def use_timers(store: SerdeStore) -> None:
    for timer in Timers(store).due("event", 10, live=False):
        key_and_name(timer.place)
    Timers(store).oldest("processing")


def fill_expiring(store: SerdeStore) -> None:
    data = header(5_000, 3) + b"value"
    store.put_all({META: meta_bytes(None), engine_key(b"k"): data, index_key(data, b"k"): b""})


def use_expiring(store: SerdeStore) -> None:
    view = live_view(store.overlay, 4_000)
    for key, _ in view.scan(None, None):
        view.get(key)


STORES = {
    **{
        f"window {number}": of_entries(partial(use_windows, window=window), partial(fill_windows, window=window))
        for number, window in enumerate(WINDOWS)
    },
    "join, all": of_entries(partial(use_join, kept=EveryRow), partial(fill_join, kept=EveryRow)),
    "join, newest": of_entries(partial(use_join, kept=NewestRow), partial(fill_join, kept=NewestRow)),
    "timers": of_entries(use_timers, fill_timers),
    "time to live": of_entries(use_expiring, fill_expiring),
}

# Files of rows, and what is written beside them.


def rows_of_file(kind: Format, ending: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            (Path(folder) / f"f.{ending}").write_bytes(data)
            place = Folder(folder)
            for found in place.files():  # none if it is empty
                with place.reading(found) as (system, path):
                    list(read_rows(SourceFile(system, path, path, found.path, {"p": "1"}), kind))

    return read


def of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="replace"))


def published(ending: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"f.{ending}"
            file.write_bytes(data)
            list(read_lines(str(file), infer=True))

    return read


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"n": list(range(50)), "s": ["a", "b"] * 25}), sink, compression="zstd")
    return bytes(sink.getvalue())


def packed(data: bytes) -> bytes:
    return bytes(pa.Codec("gzip").compress(data, asbytes=True))


def of_object(
    key: str, read: Callable[[Any], object], first: dict[str, bytes] | None = None
) -> Callable[[bytes], None]:
    """With the bytes as an object of a store."""

    def read_from(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            objects = open_store(folder)
            for name, content in {**(first or {}), key: data}.items():
                objects.put_if_absent(name, content)
            read(objects)

    return read_from


LINES = b'{"a": 1, "b": "x"}\n\n{"a": 2}\n'
CSV = b'a,b\n1,"x, y"\n,"z""\n2"\n'
STREAM = b'{"format":1,"identity":"00ff","folder":"/f","partitions":4}'
LISTED = b'{"files":[["a.parquet",10,5,0],["b.parquet",20,6,3]]}'
FOLDER = "00000000000000000000"
FILES = {
    "rows of jsonl": Codec(rows_of_file("json", "jsonl"), [LINES]),
    "rows of jsonl.gz": Codec(rows_of_file("json", "jsonl.gz"), [packed(LINES)]),
    "rows of csv": Codec(rows_of_file("csv", "csv"), [CSV]),
    "rows of parquet": Codec(rows_of_file("parquet", "parquet"), [parquet()]),
    "published jsonl": Codec(published("jsonl"), [LINES]),
    "published csv": Codec(published("csv"), [CSV]),
    "published csv.gz": Codec(published("csv.gz"), [packed(CSV)]),
    "listing": Codec(of_object(f"p/log/{FOLDER}", lambda o: Listing(o, "p", "/f").read()), [STREAM]),
    "listed files": Codec(
        of_object("p/log/00000000000000000001", lambda o: Listing(o, "p", "/f").read(), {f"p/log/{FOLDER}": STREAM}),
        [LISTED],
    ),
    "manifest of files": Codec(
        of_object(f"_penstock/00000/{FOLDER}", lambda o: PartitionLog(o, SSP).read()),
        [
            b'{"format":1,"token":"t","epochs":{"w":3},"marks":{"w":[1,2]},"files":1,"file":{"name":"f","size_bytes":1,"rows":1}}'
        ],
    ),
    "number of partitions": Codec(of_object("_penstock/partitions", noted_partitions), [b"12"]),
    "name of a file": Codec(
        lambda d: number_of(d.decode(errors="replace")), [b"part-00000-00000000000000000001-ab.parquet"]
    ),
}

# Configuration, and documents that other processes show.


def settings(ending: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"job.{ending}"
            file.write_bytes(data)
            from_file(file, [])

    return read


YAML = b'job.name: a\njob: &j {root: /r, x: [1, b]}\nsystems:\n  k: *j\n  t: "\\u0041"\n'
TABLE = TableManifest(
    "t", 3, 2, "2-b", "/s", "v", 10, 5, TableFingerprint("string", "json", ("k",), None, True, 2, False),
    (TableFile("f.sst", 0, "00", 10, 5, b"a", b"z"),),
)  # fmt: skip
SPARK_ROW = files.StructType(
    (
        files.StructField("n", "long"),
        files.StructField("s", "string"),
        files.StructField("a", files.ArrayType("integer")),
        files.StructField("m", files.MapType("string", "long")),
    )
)
SPARK_DATA = struct.pack("<QqIIIIQ8sqQii", 0b1000, 7, 3, 40, 24, 48, 0, b"abc", 2, 0, 5, 6)
BOARD_OF = open_store("memory://damaged"), JobPaths("damaged", "1")
METRICS_BOARD = MetricsBoard(*BOARD_OF)
RUN = ShownRun("r", 5, Snapshot({MetricId("a", "b", "c"): CounterValue(3)}), {(0, SSP): 7})
DOCUMENTS = {
    "yaml": Codec(settings("yaml"), [YAML]),
    "properties": Codec(settings("properties"), [b"# c\njob.name = a\\\n b\nx\\=y: \\u0041\n"]),
    "partition": Codec(of_text(SystemStreamPartition.parse), [b"local.a.b.3"]),
    "schema": Codec(of_text(parse_schema), [b"a STRING, b ARRAY<STRUCT<c: DECIMAL(10,2)>>"]),
    "table": Codec(lambda d: TableManifest.decode(d, "k"), [TABLE.encode()]),
    "positions": Codec(
        lambda d: decode_positions(d, "p"), [encode_positions(SidePositions({SSP: 3}, {}, "f", True, 9))]
    ),
    "metrics": Codec(METRICS_BOARD.decode, [METRICS_BOARD.encode(RUN)]),
    "drain": Codec(drain_board(*BOARD_OF).decode, [b'{"format":1,"run_id":"r","requests":["u"]}']),
    "notification": Codec(
        lambda d: decode_notification(d, "k"),
        [b'{"uuid":"3f2504e0-4f89-41d3-9a0c-0305e82c3301","runId":"r","drainMode":"DEFAULT"}'],
    ),
    "row of Spark": Codec(row_decoder(SPARK_ROW, "w"), [SPARK_DATA]),
}

CODECS = {**BETWEEN, **STREAMS, **READ_BY_SERDES, **STORES, **FILES, **DOCUMENTS}


@pytest.mark.parametrize("name", CODECS)
def test_what_is_whole_is_read(name: str) -> None:
    for data in CODECS[name].whole:
        CODECS[name].read(data)


@pytest.mark.attack
@pytest.mark.few(40)
@pytest.mark.parametrize("name", CODECS)
@given(st.data())
@examples(0.5)
def test_what_is_damaged_is_read_or_refused_within_a_budget(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]
    found = data.draw(damaged(data.draw(st.sampled_from(codec.whole))))
    with memory_budget(BUDGET):
        codec.read_or_refuse(found)


FILLERS = (
    b"0",
    b"9",
    b"[",
    b'{"a":',
    b" ",
    b"\\",
    b'"',
    b"a",
    b"\0",
    b"\0\1",
    b"\xff",
    b"=",
    b"\n",
    b",",
    b"a: &a [*a]\n",
)
"""Many each of digits in numbers, levels of nesting, blanks, escapes, ends and names."""


def filled(whole: bytes, filler: bytes, at: int) -> Callable[[int], bytes]:
    return lambda size: whole[:at] + filler * (size // len(filler)) + whole[at:]


@pytest.mark.attack
@pytest.mark.few(40)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_much_longer_takes_no_more_work_for_a_byte(name: str) -> None:
    codec = CODECS[name]
    is_slow = name == "yaml"  # up to two thousand brackets, the work of PyYAML is quadratic
    size = (1 << 11) if is_slow else 1 << 13
    for whole in codec.whole:
        for filler in FILLERS:
            for at in (len(whole) // 2,) if is_slow else (0, len(whole) // 2, len(whole)):
                assert not grows_too_fast(codec.read_or_refuse, filled(whole, filler, at), size), (filler, at)
