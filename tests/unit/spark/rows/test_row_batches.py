"""DataFrames in columns: from the rows that Spark sends to chunks, and from packed values to rows of Spark."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.types import LongType, StringType, StructType, YearMonthIntervalType

import penstock as ps
import penstock.spark as pss
from penstock.errors import ConfigError, IncompatibleError
from penstock.spark.rows.columns import ColumnsReader, ColumnsWriter, spark_schema
from penstock.spark.versions import arrow_schema
from tests.support.tools.profiles import examples
from tests.unit.spark.processor.test_codec import rows
from tests.unit.spark.rows.test_row_messages import TIMED, as_spark_sends

SECOND = datetime.datetime(2024, 5, 1, 12, 0, 1, tzinfo=datetime.UTC)


def read(given: ColumnsReader, batch: pa.RecordBatch) -> list[Any]:
    reader: ColumnsReader = pickle.loads(pickle.dumps(given))
    return list(reader.read([batch], 7, 2))


@examples(0.7)
@given(rows(TIMED))
def test_rows_are_what_they_were(given: tuple[StructType, list[tuple[Any, ...]]]) -> None:
    batch = as_spark_sends(*given)
    serde = ps.Columns(batch.schema)
    chunks = read(ColumnsReader("spark.rows", serde), batch)
    values = pa.concat_arrays([chunk.values for chunk in chunks]) if chunks else pa.array([], serde.type)
    assert values.to_pylist() == batch.to_pylist()
    assert all(set(chunk.offsets.tolist()) == {7} and len(chunk.keys) == len(chunk) for chunk in chunks)
    packed: Any = serde.for_store_values()
    schema = spark_schema("spark.rows", serde)
    (found,) = ColumnsWriter(packed).write([None, *packed.write(values)], arrow_schema(schema))
    assert found.to_pylist() == batch.to_pylist()


def test_many_rows_are_several_chunks_with_their_times() -> None:
    moments = [SECOND + datetime.timedelta(milliseconds=n) for n in range(70_000)]
    batch = pa.record_batch(
        {"n": pa.array(range(70_000), pa.int32()), "at": pa.array(moments, pa.timestamp("us", "UTC"))}
    )
    reader = ColumnsReader("spark.rows", ps.Columns(pa.schema({"n": pa.int64()})), "at")
    chunks = read(reader, batch)
    assert len(chunks) > 1
    assert [n for chunk in chunks for n in chunk.values.field(0).to_pylist()] == list(range(70_000))
    start = int(SECOND.timestamp()) * 1000
    assert [time for chunk in chunks for time in chunk.timestamps] == list(range(start, start + 70_000))


def test_a_value_that_does_not_fit_is_named() -> None:
    reader = ColumnsReader("spark.rows", ps.Columns(pa.schema({"n": pa.int32()})))
    with pytest.raises(IncompatibleError, match=r"the DataFrame of `spark\.rows`: column `n` does not fit int32"):
        read(reader, pa.record_batch({"n": pa.array([1, 2**40])}))


@pytest.mark.parametrize("kind", [pa.uint32(), pa.timestamp("ns"), pa.list_(pa.duration("ns")), pa.float16()])
def test_an_output_of_a_type_that_spark_does_not_have_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"output `spark\.rows`, column `v` of type .*Declare another type"):
        spark_schema("spark.rows", ps.Columns(pa.schema({"v": kind})))


def test_the_columns_of_a_dataframe() -> None:
    schema = pss.arrow_schema(StructType().add("user", StringType()).add("n", LongType(), nullable=False))
    assert schema == pa.schema([pa.field("user", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(ConfigError, match=r"arrow_schema\(\): .*Cast the column, or leave it out"):
        pss.arrow_schema(StructType().add("v", YearMonthIntervalType()))
