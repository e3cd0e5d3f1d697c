"""Configuration, names, and documents that other processes show."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import get_args

import penstock as ps
from penstock.admin.state.serdes import serde_of
from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.config.sources import from_file
from penstock.drain.requests import decode_notification
from penstock.drain.wing import drain_board
from penstock.errors import PenstockError
from penstock.graph.stores import StoreLayout
from penstock.job.commands import AuditLog
from penstock.job.identity import OwnedStreams
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.snapshot import CounterValue, MetricId, Snapshot
from penstock.objects.open import _decode_tag, open_store
from penstock.objects.store import ObjectStore
from penstock.schemas.avro import AvroState
from penstock.schemas.serde import Connection, KnownSchemas
from penstock.side.engine import SidePositions, decode_positions, encode_positions
from penstock.system.database.rows import Kind, TableColumn, TableForm
from penstock.system.rows.schema import parse_schema
from penstock.tables.build import _read_manifest
from penstock.tables.manifest import TableFile, TableFingerprint, TableManifest
from penstock.tables.store import _COMPLETE, _checksum_in
from tests.support.parsers.parser import SSP, Parser, golden, of_file, of_object, of_text


def settings(ending: str) -> Callable[[bytes], object]:
    return of_file(f"job.{ending}", lambda file: from_file(file, []))


YAML = b'job.name: a\njob: &j {root: /r, x: [1, b]}\nsystems:\n  k: *j\n  t: "\\u0041"\n'
TABLE = TableManifest(
    "t", 3, 2, "2-b", "/s", "v", 10, 5, TableFingerprint("string", "json", ("k",), None, True, 2, False),
    (TableFile("f.sst", 0, "00", 10, 5, b"a", b"z"),),
)  # fmt: skip
BOARD_OF = open_store("memory://damaged"), JobPaths("damaged", "1")
METRICS_BOARD = MetricsBoard(*BOARD_OF)
RUN = ShownRun("r", 5, Snapshot({MetricId("a", "b", "c"): CounterValue(3)}), {(0, SSP): 7})
COLUMNS = [
    TableColumn("shop", "text", "TEXT", nullable=False, length=5),
    *(TableColumn(kind, kind, kind.upper()) for kind in get_args(Kind) if kind not in ("text", "array", "choice")),
    TableColumn("choice", "choice", "ENUM", choices=("a", "b")),
    TableColumn("array", "array", "BIGINT[]", item=TableColumn("", "integer", "BIGINT")),
]
TABLE_ROW = (
    b'{"shop":"s","boolean":true,"bytes":"YWI=","date":"2026-01-31","decimal":1.50,"flag":false,"float":1.5,"integer":5,'
    b'"json":{"a":[1]},"local":"2026-01-31T12:00:00","other":"x","time":"12:30:00","timestamp":"2026-01-31T12:00:00Z",'
    b'"uuid":"3f2504e0-4f89-41d3-9a0c-0305e82c3301","choice":"a","array":[1,null]}'
)
CONNECTION = Connection((("url", "memory://damaged"),), "memory://", RootKeys(), JobPaths("damaged", "1"))


def kept_schema(objects: ObjectStore) -> object:
    """A kept schema of a registry, by which messages are read."""
    return ps.Avro(KnownSchemas(CONNECTION, objects).schema(1).text)


def serde_named(text: str) -> object:
    """The serdes of a store, by the names that a record has."""
    layout = StoreLayout.parse(text)
    found = serde_of(layout.key), serde_of(layout.value)
    for each in found:
        if isinstance(each, AvroState):
            with suppress(PenstockError):
                AvroState(('"string"',)).continuing(each.name)
    return found


DOCUMENTS = {
    "row of a database table": Parser(
        lambda d: TableForm("t", COLUMNS, ["shop"]).change(*d.partition(b"\n")[::-2]),
        [TABLE_ROW, b'{"integer":5}\ns', b'{"integer":5}\n{"shop":"s"}'],
        ValueError,
    ),
    "kept schema": Parser(
        of_object(KnownSchemas(CONNECTION, BOARD_OF[0])._key("1"), kept_schema),
        [b'{"kind":"AVRO","text":"\\"string\\"","references":[]}'],
        touches_files=True,
    ),
    "serdes of a store": Parser(
        of_text(serde_named),
        [
            b"process-1 tuple(string,long,bytes) version(json) ttl-1",
            b"a string columns(n:int64!,s:string)",
            b'a string avro("string",%22long%22)',
            b"a string aggregate(flights=Count,miles=Mean)",
        ],
    ),
    "audit log": Parser(
        of_object(JobPaths("j", "1").audit_log + "/1.json", lambda o: [*AuditLog(o, JobPaths("j", "1")).read()]),
        golden("audit-format1.json"),
        touches_files=True,
    ),
    "owner of a stream": Parser(
        of_object("k", lambda o: OwnedStreams(o, JobPaths("j", "1"))._recorded("k")),
        golden("owned-stream-format1.json"),
        touches_files=True,
    ),
    "manifest of a pushed table": Parser(
        lambda d: _read_manifest(d, "u"), [b'{"files":["a.parquet",{"name":"b","rows":3}],"rows":5}']
    ),
    "mark of a whole table": Parser(
        of_file(_COMPLETE, lambda file: _checksum_in(file.parent)), [b'{"checksum":"00"}'], touches_files=True
    ),
    "tag of an object": Parser(of_text(_decode_tag), [b'["e",null]']),
    "yaml": Parser(settings("yaml"), [YAML], grows=False),
    "properties": Parser(settings("properties"), [b"# c\njob.name = a\\\n b\nx\\=y: \\u0041\n"]),
    "partition": Parser(of_text(SystemStreamPartition.parse), [b"local.a.b.3"]),
    "schema": Parser(of_text(parse_schema), [b"a STRING, b ARRAY<STRUCT<c: DECIMAL(10,2)>>"]),
    "table": Parser(lambda d: TableManifest.decode(d, "k"), [TABLE.encode()]),
    "positions": Parser(
        lambda d: decode_positions(d, "p"), [encode_positions(SidePositions({SSP: 3}, {}, "f", True, 9))]
    ),
    "metrics": Parser(METRICS_BOARD.decode, [METRICS_BOARD.encode(RUN)]),
    "drain": Parser(drain_board(*BOARD_OF).decode, [b'{"format":1,"run_id":"r","requests":["u"]}']),
    "notification": Parser(
        lambda d: decode_notification(d, "k"),
        [b'{"uuid":"3f2504e0-4f89-41d3-9a0c-0305e82c3301","runId":"r","drainMode":"DEFAULT"}'],
    ),
}
