"""The types of columns that follow from serdes, and those that are given."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType, StructField, StructType

import penstock as ps
from penstock.admin.state.serdes import serde_of
from penstock.errors import ConfigError, SerdeError
from penstock.graph.event_time import DELETED, VersionKey, VersionValue
from penstock.spark.state_columns import ColumnSource, column_of


def part(serde: ps.Serde[Any] | None, kind: DataType | str | None = None, function: Any = None) -> ColumnSource:
    return ColumnSource("value", "totals", "none" if serde is None else serde.name, serde, kind, function)


def read(given: ColumnSource, *data: bytes | None) -> tuple[str, list[Any]]:
    """The type's text, and the elements of these bytes."""
    kind, column = column_of(given)
    return kind.simpleString(), column.array("totals", 0, data).to_pylist()


@pytest.mark.parametrize(
    ("serde", "elements", "kind"),
    [
        (ps.String(), ["ä", ""], "string"),
        (ps.Bytes(), [b"\xff"], "binary"),
        (ps.Integer(), [-1, 2**31 - 1], "int"),
        (ps.Long(), [-(2**63)], "bigint"),
        (ps.Double(), [0.5, float("-inf")], "double"),
        (ps.SamzaLong(), [7], "bigint"),
    ],
)
def test_types_that_follow_from_serdes(serde: ps.Serde[Any], elements: list[Any], kind: str) -> None:
    for own in (serde, serde.for_store_keys()):
        data = [own.to_bytes(each) for each in elements]
        assert read(part(own), *data, None) == (kind, [*elements, None])
        assert read(part(serde_of(own.name)), *data) == (kind, elements), "as a checkpoint names it"


def test_tuples_and_versions() -> None:
    key = ps.Tuple(ps.String(), ps.Long())
    assert read(part(key), key.to_bytes(("a\0", 3))) == ("struct<_1:string,_2:bigint>", [{"_1": "a\0", "_2": 3}])
    version = VersionKey(ps.String())
    assert read(part(version), version.to_bytes(("a", 5))) == (
        "struct<key:string,time_ms:bigint>",
        [{"key": "a", "time_ms": 5}],
    )
    value = VersionValue(ps.Json())
    assert read(part(value), value.to_bytes({"n": 1}), value.to_bytes(DELETED)) == ("string", ['{"n":1}', None])
    number = VersionValue(ps.Long())
    assert read(part(number), number.to_bytes(8), number.to_bytes(DELETED)) == ("bigint", [8, None])


def test_json_is_text_or_what_is_given() -> None:
    data = ps.Json().to_bytes({"n": 1, "more": [1, 2]})
    assert read(part(ps.Json()), data) == ("string", [data.decode()])
    kind = StructType([StructField("n", LongType()), StructField("none", StringType())])
    assert read(part(ps.Json(), kind), data) == ("struct<n:bigint,none:string>", [{"n": 1, "none": None}])
    assert read(part(ps.Json(), BinaryType()), data) == ("binary", [data])
    with pytest.raises(SerdeError, match="does not have the type string"):
        read(part(ps.Json(), StringType()), data)


def test_functions() -> None:
    data = ps.Json().to_bytes({"n": 1})
    assert read(part(ps.Json(), LongType(), lambda value: value["n"]), data) == ("bigint", [1])
    assert read(part(None, LongType(), len), b"abc", None) == ("bigint", [3, None])
    with pytest.raises(ConfigError, match="`value_function` needs `value_type`"):
        column_of(part(ps.Json(), None, len))


class Celsius(ps.Serde[float]):
    def to_bytes(self, obj: float) -> bytes:
        return f"{obj}C".encode()

    def from_bytes(self, data: bytes) -> float:
        return float(data[:-1])


class Floored(ps.Double):
    def from_bytes(self, data: bytes) -> float:
        return float(int(super().from_bytes(data)))


def test_serdes_that_are_not_penstocks() -> None:
    assert read(part(None), b"\x00") == ("binary", [b"\x00"])
    assert read(part(None, BinaryType()), b"\x00") == ("binary", [b"\x00"])
    with pytest.raises(ConfigError, match="give `app`, the application that declares it, or a `value_function`"):
        column_of(part(None, LongType()))
    for serde in (Celsius(), Floored()):
        with pytest.raises(ConfigError, match=r"whose Spark type is not known. Give it.*value_type=\"BINARY\""):
            column_of(part(serde))
    assert read(part(Floored(), DoubleType()), ps.Double().to_bytes(1.5)) == ("double", [1.0])
    assert column_of(part(None))[1].type == pa.binary()
