"""The rows of a DataFrame as chunks for tasks, without Spark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from penstock.spark.processor.keys import INITIAL
from penstock.spark.rows.columns import ChunkReader
from penstock.spark.versions import arrow_schema

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
    assert read([data[len(INITIAL) :] for _, _, _, data in initial], STATE) == sorted(state.to_pylist(), key=str)
    assert read([data for _, _, _, data in usual], ROWS) == sorted(rows.to_pylist(), key=str)
    assert max(time for _, time, _, _ in usual) == 7_000
    assert {time for _, time, _, _ in initial} == {0}, "initial state does not move event time"

    alone = [message for each in ChunkReader(KEY, "at").read([rows], 7, tasks) for message in each]
    assert alone == usual, "the same tasks, and the same bytes"


def read(chunks: list[bytes], schema: pa.Schema) -> list[dict[str, object]]:
    batches = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for data in chunks]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=str)
