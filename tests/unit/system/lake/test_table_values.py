"""The values of rows in tables: those that files of the same rows have, whatever happened to the columns since."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType

from penstock.errors import IncompatibleError
from penstock.system.base import ColumnChunk, OffsetRange
from penstock.system.lake.system import DeltaSystem, LakeSystem
from penstock.system.rows.messages import as_json
from tests.support.world.lake_tables import SCHEMA, Row, WrittenDelta, WrittenIceberg, all_rows, of, written
from tests.support.world.lake_world import Kind

LINE = pa.struct({"sku": pa.string(), "price": pa.decimal128(10, 2)})
TYPES = pa.schema(
    {
        "n": pa.int64(),
        "small": pa.int32(),
        "ok": pa.bool_(),
        "rate": pa.float64(),
        "total": pa.decimal128(12, 3),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "raw": pa.binary(),
        "lines": pa.list_(LINE),
        "by": pa.map_(pa.string(), pa.int64()),
        "place": pa.struct({"city": pa.string(), "at": pa.struct({"x": pa.int32()})}),
    }
)
ROWS: list[Row] = [
    {
        "n": 1,
        "small": 7,
        "ok": True,
        "rate": 0.5,
        "total": Decimal("12.500"),
        "day": date(2024, 5, 1),
        "at": datetime(2024, 5, 1, 12, tzinfo=UTC),
        "local": datetime(2024, 5, 1, 12, 0, 0, 5, UTC).replace(tzinfo=None),
        "raw": b"\xff\0",
        "lines": [{"sku": "é", "price": Decimal("1.00")}, None, {"sku": None, "price": None}],
        "by": [("a", 1), ("b", None)],
        "place": {"city": "x", "at": {"x": 3}},
    },
    dict.fromkeys(TYPES.names) | {"n": 2},
    dict.fromkeys(TYPES.names) | {"n": 3, "lines": [], "by": [], "place": {"city": None, "at": None}},
]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["", "a", None, " ", "x=y/z", "__HIVE_DEFAULT_PARTITION__"]),
        (pa.int64(), [-5, None, 2**63 - 1, -(2**63)]),
        (pa.bool_(), [True, False, None]),
        (pa.float32(), [0.5, 3.4028234663852886e38, None]),
        (pa.timestamp("us"), [datetime(1, 1, 1, tzinfo=UTC).replace(tzinfo=None), None]),
        (pa.date32(), [date(1, 1, 1), None]),
        (pa.timestamp("us", "UTC"), [datetime(1960, 1, 1, 0, 0, 0, 5, tzinfo=UTC), None]),
    ],
)
def test_a_partition_has_one_value_by_commits_or_snapshot(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    """An empty text is null, as in Delta's protocol."""
    rows = pa.table({"n": range(len(values)), "p": pa.array(values, kind)})
    write_deltalake(tmp_path / "orders", rows, partition_by=["p"])
    system = DeltaSystem.configured("lake", {"folder": str(tmp_path)})
    expected = DeltaTable(tmp_path / "orders").to_pyarrow_table().select(["n", "p"]).sort_by("n").to_batches()
    wanted = [orjson.loads(row) for batch in expected for row in as_json(batch, {})]
    for begin in ("", "snapshot:0"):
        assert sorted(all_rows(system, begin), key=lambda row: int(row["n"])) == wanted


def test_a_partition_of_bytes(tmp_path: Path) -> None:
    """delta-rs itself reads its escapes as they stand."""
    values = [b"", b"a", None, b"\xff\0", "é".encode(), rb"\u0041"]
    given = pa.table({"n": range(6), "p": pa.array(values, pa.binary())})
    write_deltalake(tmp_path / "orders", given, partition_by=["p"])
    system = DeltaSystem.configured("lake", {"folder": str(tmp_path)})
    wanted = [None if not each else b64encode(each).decode() for each in values]
    for begin in ("", "snapshot:0"):
        rows = sorted(all_rows(system, begin), key=lambda row: int(row["n"]))
        assert [row["p"] for row in rows] == wanted


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def columns(system: LakeSystem, schema: pa.Schema) -> list[Row]:
    end = system.admin().offsets("orders")[0].upcoming
    with closing(system.reader()) as reader:
        chunks = [*reader.read_columns(OffsetRange(of(0), 0, end), schema, 100)]
    return [row for chunk in chunks if isinstance(chunk, ColumnChunk) for row in chunk.values.to_pylist()]


@pytest.mark.few(1)
def test_values_are_those_of_files(kind: Kind, tmp_path: Path) -> None:
    table = written(kind, tmp_path / "lake", TYPES)
    table.append(ROWS)
    system = table.system(partitions="1")
    rows = table.rows()
    assert rows == ROWS or (kind == "iceberg" and rows[1]["lines"] == [])  # PyIceberg writes a null list of structs so
    expected = [*map(orjson.loads, as_json(pa.Table.from_pylist(rows, TYPES).to_batches()[0], {}))]
    assert all_rows(system) == all_rows(system, "snapshot") == expected
    assert expected[0]["total"] == "12.500"
    assert expected[0]["at"] == "2024-05-01T12:00:00Z"
    assert columns(system, TYPES) == rows


def test_columns_that_got_another_name_or_a_wider_type(tmp_path: Path) -> None:
    table = WrittenIceberg(tmp_path)
    table.drop()
    table.schema = TYPES
    table.create()
    table.append(ROWS)
    with table.table.update_schema() as update:
        update.rename_column("rate", "ratio").delete_column("raw").rename_column("place.city", "town")
        update.rename_column("lines.element.sku", "code").update_column("small", LongType())
        update.add_column(("place", "zip"), StringType()).move_first("day")
        update.add_column("raw", StringType())
    expected = [*map(orjson.loads, as_json(table.table.scan().to_arrow().to_batches()[0], {}))]
    assert all_rows(table.system(partitions="1")) == expected
    assert next(iter(expected[0])) == "day"
    assert (expected[0]["ratio"], expected[0]["raw"], expected[0]["small"]) == (0.5, None, 7)
    assert expected[0]["place"] == {"town": "x", "at": {"x": 3}, "zip": None}
    assert expected[0]["lines"][0] == {"code": "é", "price": "1.00"}


def test_columns_of_partitions(kind: Kind, tmp_path: Path) -> None:
    """Delta does not have them in the files."""
    schema = pa.schema({"n": pa.int64(), "shop": pa.string(), "day": pa.date32(), "at": pa.timestamp("us", "UTC")})
    rows: list[Row] = [
        {"n": 1, "shop": "a b/ä%", "day": date(2024, 5, 1), "at": datetime(2024, 5, 1, 12, 30, tzinfo=UTC)},
        {"n": 2, "shop": None, "day": None, "at": None},
        {"n": 3, "shop": "", "day": date(1969, 1, 1), "at": datetime(2024, 5, 1, tzinfo=UTC)},
    ]
    if kind == "delta":
        table: Any = WrittenDelta.__new__(WrittenDelta)
        table.home, table.schema = tmp_path, schema
        rows[2]["shop"] = "c"  # Delta has no empty text there
        DeltaTable.create(table.path, schema, partition_by=["shop", "day", "at"])
    else:
        table = WrittenIceberg(tmp_path, schema)
        table.drop()
        fields = [PartitionField(number, 1000 + number, IdentityTransform(), f"p{number}") for number in (2, 3, 4)]
        kinds = (LongType(), StringType(), DateType(), TimestamptzType())
        columns_with_ids = (NestedField(n, *each) for n, each in enumerate(zip(schema.names, kinds, strict=True), 1))
        table.catalog.create_table("default.orders", Schema(*columns_with_ids), partition_spec=PartitionSpec(*fields))
    table.append(rows)
    system = table.system(partitions="1")
    expected = [*map(orjson.loads, as_json(pa.Table.from_pylist(rows, schema).to_batches()[0], {}))]
    assert all_rows(system) == all_rows(system, "snapshot") == expected
    assert sorted(columns(system, schema), key=lambda row: row["n"]) == rows


def commit(table: WrittenDelta, *actions: dict[str, Any]) -> None:
    """A commit by another writer, with features that delta-rs does not write."""
    version = DeltaTable(table.path).version() + 1
    lines = [json.dumps(action) for action in ({"commitInfo": {"timestamp": 1000, "operation": "OTHER"}}, *actions)]
    Path(f"{table.path}/_delta_log/{version:020}.json").write_text("\n".join(lines))


def actions_of(table: WrittenDelta, version: int) -> dict[str, Any]:
    lines = Path(f"{table.path}/_delta_log/{version:020}.json").read_text().splitlines()
    return {kind: body for line in lines if line for kind, body in json.loads(line).items()}


def test_delta_columns_by_their_physical_names(tmp_path: Path) -> None:
    table = WrittenDelta(tmp_path)
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical},
        }
        for number, (name, kind, physical) in enumerate([("n", "long", "col-1"), ("words", "string", "text")], 1)
    ]
    metadata = actions_of(table, 0)["metaData"]
    metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    metadata["configuration"] = {"delta.columnMapping.mode": "name"}
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}
    commit(table, {"protocol": {**features, "writerFeatures": ["columnMapping"]}}, {"metaData": metadata})
    pa.parquet.write_table(pa.table({"col-1": [5], "text": ["five"]}), f"{table.path}/a.parquet")
    commit(table, {"add": add("a.parquet")})
    system = table.system(partitions="1")
    assert all_rows(system) == all_rows(system, "snapshot") == [{"n": 5, "words": "five"}]
    (message,) = next(system.reader().read(OffsetRange(of(0), 0, system.admin().offsets("orders")[0].upcoming), 5))
    assert message[1] == 1000  # the time of the commit, not that of the file
    assert columns(system, pa.schema({"words": pa.string()})) == [{"words": "five"}]


def add(path: str, **more: Any) -> dict[str, Any]:
    """An added file without statistics."""
    return {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 5, "dataChange": True, **more}


def test_delta_rows_that_a_deletion_vector_deletes(tmp_path: Path) -> None:
    table = WrittenDelta(tmp_path)
    rows: list[Row] = [{"n": n, "text": None} for n in range(6)]
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    commit(table, {"protocol": {**features, "writerFeatures": ["deletionVectors"]}})
    for name in ("a", "b"):
        pa.parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), f"{table.path}/{name}.parquet")
    commit(table, {"add": add("a.parquet")})
    vector = {"storageType": "u", "offset": 1, "cardinality": 2, **bitmap(Path(table.path), [1, 4])}
    stats = json.dumps({"numRecords": 6, "tightBounds": False})
    commit(
        table,
        {"remove": {"path": "a.parquet", "dataChange": True, "deletionTimestamp": 1}},
        {"add": add("a.parquet", deletionVector=vector, stats=stats)},
        {"add": add("b.parquet", stats=json.dumps({"numRecords": 6}))},
    )
    with pytest.raises(IncompatibleError, match=r"version 3 removes or changes rows \(OTHER\)"):
        all_rows(table.system())
    left = [row for row in rows if row["n"] not in (1, 4)]
    skipping, adding = (table.system(changes=changes, partitions="1") for changes in ("skip", "added"))
    assert all_rows(skipping) == rows
    assert all_rows(adding) == sorted(rows * 2, key=lambda row: row["n"])
    for system in (skipping, adding):
        found = all_rows(system, "snapshot:3")
        assert found == sorted(left + rows, key=lambda row: row["n"])
        begun = system.admin().named_offset(of(0), "snapshot")
        whole = [each for chunk in system.reader().read(OffsetRange(of(0), begun, begun + 20), 3) for each in chunk]
        for number, message in enumerate(whole):
            (first,) = next(system.reader().read(OffsetRange(of(0), message[0], begun + 20), 1))
            assert first == whole[number]


def bitmap(folder: Path, rows: list[int]) -> dict[str, Any]:
    """A file of one deletion vector, by Delta's protocol, and how an action names it."""
    container = struct.pack("<II", 12346, 1) + struct.pack("<HH", 0, len(rows) - 1) + struct.pack("<I", 16)
    data = struct.pack("<IQI", 1681511377, 1, 0) + container + struct.pack(f"<{len(rows)}H", *rows)
    name = "12345678-1234-5678-1234-567812345678"
    file = b"\1" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (folder / f"deletion_vector_{name}.bin").write_bytes(file)
    return {"pathOrInlineDv": z85(bytes.fromhex(name.replace("-", ""))), "sizeInBytes": len(data)}


def z85(data: bytes) -> str:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(letters[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]}},
            "catalogManaged",
        ),
        ({"add": add("s3://elsewhere/a.parquet")}, "shallow clone"),
    ],
)
def test_delta_features_that_are_not_read(tmp_path: Path, action: dict[str, Any], said: str) -> None:
    table = WrittenDelta(tmp_path)
    system = table.system(partitions="1")
    with closing(system.admin()) as admin:
        admin.offsets("orders")
        commit(table, action)
        with pytest.raises(IncompatibleError, match=said):
            admin.offsets("orders")
    with pytest.raises(IncompatibleError):
        all_rows(system)


def test_a_column_whose_type_does_not_become_that_of_the_table(tmp_path: Path) -> None:
    table = WrittenDelta(tmp_path)
    pa.parquet.write_table(pa.table({"n": ["many"]}), f"{table.path}/a.parquet")
    commit(table, {"add": add("a.parquet")})
    with pytest.raises(IncompatibleError, match=r"column `n` of `a\.parquet` has the type string"):
        all_rows(table.system())


def test_files_of_iceberg_without_ids(tmp_path: Path) -> None:
    table = WrittenIceberg(tmp_path)
    file = Path(table.table.location().removeprefix("file://")) / "other.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(pa.table({"n": pa.array([4], pa.int64()), "text": ["four"]}), file)
    table.table.add_files([f"file://{file}"])
    assert all_rows(table.system()) == [{"n": 4, "text": "four"}]
    with table.table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(IncompatibleError, match="has no id"):
        all_rows(table.system())


def test_write_deltalake_is_what_the_tables_above_are_written_with(tmp_path: Path) -> None:
    """A table that write_deltalake makes itself."""
    write_deltalake(f"{tmp_path}/tables/orders", pa.table({"n": [1], "list": [["a", None]]}))
    table = WrittenDelta.__new__(WrittenDelta)
    table.home = tmp_path
    assert all_rows(table.system()) == [{"n": 1, "list": ["a", None]}]
