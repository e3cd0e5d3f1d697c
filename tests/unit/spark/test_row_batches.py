"""DataFrames in columns and as chunks for tasks, and from packed values to rows of Spark."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.types import LongType, StringType, StructType, TimestampType, YearMonthIntervalType

import penstock as ps
import penstock.spark as pss
from penstock.errors import ConfigError, IncompatibleError
from penstock.spark.processor.fields import INITIAL
from penstock.spark.row_batches import ChunkReader, ColumnsReader, ColumnsWriter, spark_schema
from penstock.spark.versions import arrow_schema
from tests.support.tools.profiles import examples
from tests.unit.spark.processor.test_codec import rows
from tests.unit.spark.test_row_messages import TIMED, as_spark_sends

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


KEY = StructType().add("k", StringType())
ROWS = arrow_schema(StructType().add("k", StringType()).add("at", TimestampType()))
STATE = arrow_schema(StructType().add("n", LongType()).add("k", StringType()))


def test_rows_and_initial_state_of_one_dataframe_become_separate_chunks_of_the_same_tasks() -> None:
    rows = pa.RecordBatch.from_pylist([{"k": k, "at": at} for k, at in (("a", 5_000_000), ("b", 7_000_000))], ROWS)
    state = pa.RecordBatch.from_pylist([{"n": 1, "k": "b"}, {"n": 2, "k": "a"}, {"n": None, "k": "c"}], STATE)
    both = pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays([rows.to_struct_array(), pa.nulls(3, pa.struct(list(ROWS)))]),
            pa.concat_arrays([pa.nulls(2, pa.struct(list(STATE))), state.to_struct_array()]),
        ],
        names=["penstock.row", "penstock.initial"],
    )
    reader, tasks = ChunkReader(KEY, "at"), 3
    found = [(at, time, key, data or b"") for each in reader.read([both], 7, tasks) for at, time, key, data, *_ in each]
    assert {offset for offset, _, _, _ in found} == {7}

    initial = [each for each in found if each[3].startswith(INITIAL)]
    usual = [each for each in found if not each[3].startswith(INITIAL)]
    assert chunks_of([data[len(INITIAL) :] for _, _, _, data in initial], STATE) == sorted(state.to_pylist(), key=str)
    assert chunks_of([data for _, _, _, data in usual], ROWS) == sorted(rows.to_pylist(), key=str)
    assert max(time for _, time, _, _ in usual) == 7_000
    assert {time for _, time, _, _ in initial} == {0}, "initial state does not move event time"

    alone = [message for each in ChunkReader(KEY, "at").read([rows], 7, tasks) for message in each]
    assert alone == usual, "the same tasks, and the same bytes"


def chunks_of(chunks: list[bytes], schema: pa.Schema) -> list[dict[str, object]]:
    batches = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for data in chunks]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=str)
