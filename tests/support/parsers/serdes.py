"""Serdes: those of users' messages, and those of values that Penstock keeps in stores. A serde may raise anything: a
message that it does not read becomes a SerdeError."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from google.protobuf import json_format, struct_pb2
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

import penstock as ps
from penstock.admin.state.serdes import ColumnStates, JsonStates
from penstock.api.serdes import JsonKey, PackedColumns
from penstock.api.serdes.base import BytesWithKey
from penstock.api.serdes.values import DoubleKey, OrderedDouble, OrderedInteger, OrderedLong
from penstock.api.time.firing import Panes
from penstock.base.exact_json import exact_bytes, exact_value
from penstock.graph.event_time import LatestFirst, VersionKey, VersionValue
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.fields import KeyCodec
from penstock.spark.row_serde import Rows
from tests.support.faults.hostile_serdes import AVRO, JSON_SCHEMA, Node, NodeStruct
from tests.support.parsers.parser import Parser, all_of

NUMBERS: list[ps.Serde[Any]] = [
    ps.Integer(), ps.Long(), ps.Double(), ps.SamzaInteger(), ps.SamzaLong(), ps.SamzaDouble(),
    OrderedInteger(), OrderedLong(), OrderedDouble(), DoubleKey(), LatestFirst(),
]  # fmt: skip
COLUMNS = pa.schema(
    {
        "d": pa.decimal128(20, 2),
        "l": pa.list_(pa.decimal128(20, 2)),
        "b": pa.list_(pa.binary(3)),
        "m": pa.map_(pa.uint64(), pa.int64()),
        "s": pa.struct({"n": pa.int64(), "f": pa.float32()}),
        "t": pa.timestamp("us", "UTC"),
    }
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
IN_ZURICH = NOON.astimezone(ZoneInfo("Europe/Zurich"))
ROW = {"d": Decimal("1.50"), "l": [None, Decimal(2)], "b": [b"abc"], "m": [(3, 4)], "s": {"n": 1, "f": 0.5}, "t": NOON}
NODE = {
    "next": {"next": None, "none": [], "d": Decimal(0), "m": {}},
    "none": [None],
    "d": Decimal(512),
    "m": {"a": 0.5},
}
SERDES: dict[str, tuple[ps.Serde[Any], Any]] = {
    "String": (ps.String(), "Zürich"),
    "Bytes": (ps.Bytes(), b"abc"),
    "Json": (ps.Json(), {"a": [1, 2.5, None, "b"]}),
    "JsonKey": (JsonKey(), {"a": [1, 2.5, None, "b"]}),
    "Tuple": (ps.Tuple(ps.String(), ps.Long(), ps.Bytes()).for_store_keys(), ("a\0b", 2, b"\0\xff")),
    "VersionKey": (VersionKey(ps.String()), ("k", 7)),
    "VersionValue": (VersionValue(ps.Json()), {"a": 1}),
    "BytesWithKey": (BytesWithKey(ps.String(), bytes), b"abc"),
    "Panes": (Panes(), ps.WindowPane("k", ps.TimeWindow(0, 10), {"n": 1}, "early", 0)),
    "IntermediateMessageSerde": (ps.IntermediateMessageSerde(ps.String()), ps.WatermarkMessage(60_000)),
    "Avro": (ps.Avro(AVRO), NODE),
    "Avro of a float": (ps.Avro('{"type":"array","items":"float"}'), [0.5]),
    "AvroState": (ps.Avro(AVRO).for_store_values(), NODE),
    "JsonSchema": (ps.JsonSchema(JSON_SCHEMA), {"d": "aa", "s": [], "aa": 1}),
    "Protobuf": (ps.Protobuf(struct_pb2.Struct), json_format.ParseDict({"a": [1, {"b": None}]}, struct_pb2.Struct())),
    "Struct of a dataclass": (ps.Struct(Node), Node(Decimal("1.5"), {1: 2}, {3}, Node())),
    "Struct of a struct": (ps.Struct(NodeStruct), NodeStruct([Decimal("1.5")], None, NodeStruct())),
    "Struct of a dict": (ps.Struct(dict[int, Any]), {1: ["a"]}),
    "Struct of a set": (ps.Struct(set[int]), {1, 2}),
    "Columns": (ps.Columns(COLUMNS), ROW),
    "PackedColumns": (PackedColumns(COLUMNS), ROW),
}
SCHEMA = (
    StructType()
    .add("n", LongType())
    .add("s", StringType())
    .add("d", DecimalType(10, 2))
    .add("a", ArrayType(StringType()))
    .add("m", MapType(StringType(), ArrayType(LongType())))
)
ROW_CODEC, KEY_CODEC = RowCodec(SCHEMA), KeyCodec(StructType(SCHEMA.fields[:4]))
ROWS = Rows(SCHEMA)
READ_BY_SERDES = {
    **{
        f"serde {name}": Parser(serde.from_bytes, [serde.to_bytes(value)], Exception, again=serde.to_bytes)
        for name, (serde, value) in SERDES.items()
    },
    "serdes of numbers": Parser(
        all_of((each.from_bytes for each in NUMBERS), Exception), [each.to_bytes(7) for each in NUMBERS]
    ),
    "states of aggregates": Parser(JsonStates(["n", "m"]).from_bytes, [b"[2,[1490,2]]"], Exception),
    "states of aggregates in columns": Parser(
        ColumnStates([("n", "n")], [pa.int64()]).from_bytes, [b"\0" + (7).to_bytes(8, "little")], Exception
    ),
    "serde of rows": Parser(
        ROWS.from_bytes,
        [ROWS.to_bytes((1, "s", Decimal("1.50"), ["x", None], {"k": [1]}))],
        Exception,
        again=ROWS.to_bytes,
    ),
    "value of a state": Parser(
        exact_value,
        [exact_bytes([Decimal("1.5"), NOON, {1: b"x"}, {2}, NOON.astimezone(ZoneInfo("Europe/Zurich"))])],
        Exception,
        again=exact_bytes,
    ),
    "row of a processor": Parser(
        ROW_CODEC.decode,
        [ROW_CODEC.encode((1, "s", None, ["x", None], {"k": [1]})), ROW_CODEC.encode((None,) * 5)],
        Exception,
        again=ROW_CODEC.encode,
    ),
    "key of a processor": Parser(
        KEY_CODEC.decode, [KEY_CODEC.encode((1, "s", None, ["x"]))], Exception, again=KEY_CODEC.encode
    ),
}
