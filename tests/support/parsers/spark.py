"""The files of a checkpoint that Spark has made, from which state is imported."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from penstock.spark.query.checkpoint_location import query_in
from penstock.spark.state_import import files
from penstock.spark.state_import.checkpoint import OperatorFacts, SparkCheckpoint, _operator
from penstock.spark.state_import.files import EntrySchema, read_schema
from penstock.spark.state_import.reader import ChangelogHead, fetch_snapshot, read_changelog, read_head
from penstock.spark.state_import.rows import row_decoder
from penstock.state.engines.engine import compress
from tests.support.parsers.parser import Parser
from tests.support.stores.spark_state import GOLDEN, OneFile


def several(pattern: str, at_most: int = 4) -> list[bytes]:
    """Golden files of different locations."""
    found = {path.parts[len(GOLDEN.parts)]: path for path in sorted(GOLDEN.rglob(pattern))}
    return [path.read_bytes() for path in list(found.values())[:at_most]]


def snapshot(data: bytes) -> object:
    with TemporaryDirectory() as folder:
        return fetch_snapshot(OneFile(data), "state/0/0", "1.zip", Path(folder) / "target")


class NamedFiles(OneFile):
    """The same with a file of each name."""

    def __init__(self, data: bytes, *names: str) -> None:
        super().__init__(data)
        self._names = names

    def list(self, prefix: str, /) -> list[str]:
        return [f"{prefix}/{name}" for name in self._names]


def location(data: bytes) -> None:
    SparkCheckpoint(NamedFiles(data, "0"), "u").check_batch(0)


SPARK_ROW = files.StructType(
    (
        files.StructField("n", "long"),
        files.StructField("s", "string"),
        files.StructField("a", files.ArrayType("integer")),
        files.StructField("m", files.MapType("string", "long")),
    )
)
SPARK_DATA = struct.pack("<QqIIIIQ8sqQii", 0b1000, 7, 3, 40, 24, 48, 0, b"abc", 2, 0, 5, 6)
OPERATOR = {
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
}
FIELDS = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": {"type": "array", "elementType": "decimal(10,2)", "containsNull": True}},
        {"name": "a", "type": {"type": "map", "keyType": "string", "valueType": {"type": "udt", "class": "x"}}},
    ],
}
SPARK = {
    "changelog of Spark": Parser(lambda d: list(read_changelog(d, "k")), several("*.changelog")),
    "changelog of Spark, unpacked": Parser(
        lambda d: list(read_changelog(d, "k")), [b"\x00\x02v2\x01\0\0\0\1k\0\0\0\2vv\0"], wrap=compress
    ),
    "snapshot of Spark": Parser(snapshot, several("*.zip"), is_whole=False),
    "file of a schema of Spark": Parser(lambda d: read_schema(d, "k"), several("schema*") + several("*_schema*")),
    "schema of Spark": Parser(
        lambda d: read_schema(d, "k"),
        [orjson.dumps(FIELDS)],
        kind=dict[str, EntrySchema],
        wrap=lambda d: struct.pack(">H2sH", 2, b"v1", len(d) & 0xFFFF) + d + struct.pack(">H", len(d) & 0xFFFF) + d,
    ),
    "operator of Spark": Parser(lambda d: _operator(0, d, "k"), [orjson.dumps(OPERATOR)], kind=OperatorFacts),
    "lineage of Spark": Parser(
        lambda d: read_head(d, "k"),
        [b'[{"version":1,"checkpointUniqueId":"a-b"}]'],
        kind=ChangelogHead,
        wrap=lambda d: compress(b"\x00\x02v3" + struct.pack(">H", len(d) & 0xFFFF) + d),
    ),
    "offsets of a batch of Spark": Parser(location, several("offsets/0")),
    "commit of a batch of Spark": Parser(
        lambda d: SparkCheckpoint(OneFile(d), "u")._checkpoint_ids(0, 0, 0), several("commits/0")
    ),
    "query of Spark": Parser(lambda d: SparkCheckpoint(OneFile(d), "u").query_id(), several("checkpoint/metadata")),
    "query that a location is of": Parser(lambda d: query_in(d, "metadata"), several("checkpoint/metadata"), kind=str),
    "row of Spark": Parser(row_decoder(SPARK_ROW, "w"), [SPARK_DATA]),
}
