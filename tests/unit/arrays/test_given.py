"""Rows and columns that other libraries give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.arrays.given import batch_of, column_of
from penstock.testing import TestRunner

ROWS: list[dict[str, Any]] = [{"key": "a", "n": 1}, {"key": None, "n": 2}, {"key": "c", "n": 3}]
TABLE = pa.table({"key": pa.array(["a", None, "c"]), "n": pa.array([1, 2, 3])})
FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_dataframe_is_a_batch(kind: str) -> None:
    assert batch_of(FRAMES[kind](TABLE)).to_pylist() == ROWS
    assert batch_of(FRAMES[kind](TABLE.slice(0, 0)) if kind != "batch" else TABLE.to_batches()[0]).num_columns == 2


def test_the_index_of_pandas_is_no_column() -> None:
    frame = TABLE.to_pandas().iloc[[2, 0]]
    assert batch_of(frame).to_pylist() == [ROWS[2], ROWS[0]]
    assert column_of(frame["n"]).to_pylist() == [3, 1]


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("name", ["key", "n"])
def test_a_series_is_a_column(kind: str, name: str) -> None:
    frame: Any = FRAMES[kind](TABLE)
    column = column_of(frame[name])
    assert column.to_pylist() == [row[name] for row in ROWS]
    assert not pa.types.is_string_view(column.type)


def test_arrays_and_lists_are_columns() -> None:
    assert column_of(np.array([1, 2])).equals(pa.array([1, 2]))
    assert column_of(["a", None]).equals(pa.array(["a", None]))


@pytest.mark.parametrize("given", [None, 7, "text", {"key": ["a"]}])
def test_other_objects_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="expected a RecordBatch, a Table or a DataFrame, not a value of type"):
        batch_of(given)
    with pytest.raises(TypeError, match=r"expected a column, as pyarrow\.Array, not a value of type"):
        column_of(given)


def frame_of(batch: pa.RecordBatch) -> Any:
    return pl.from_arrow(batch)


class Counts(ps.BatchProcessor):
    """Counts the messages of each key, in the DataFrames of a library."""

    library = "polars"

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.counts = context.store("counts")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        if self.library == "polars":
            frame: Any = pl.from_arrow(batch.values)
            new = frame.group_by("key").agg(pl.len().cast(pl.Int64).alias("count"))
            before: Any = pl.from_arrow(self.counts.get_many(new["key"]))
            counts: Any = pl.DataFrame({"count": new["count"] + before["count"].fill_null(0)})
        else:
            sizes = batch.values.to_pandas().groupby("key", as_index=False).size()
            new = sizes.rename(columns={"size": "count"})
            earlier = self.counts.get_many(new["key"]).to_pandas()["count"].fillna(0)
            counts = pd.DataFrame({"count": (new["count"] + earlier).astype(int)})
        self.counts.put_many(new["key"], counts)
        collector.emit(new["key"], counts)


@pytest.fixture(params=["polars", "pandas"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestRunner]:
    monkeypatch.setattr(Counts, "library", request.param)
    count = ps.Columns(pa.schema({"count": pa.int64()}))
    app = ps.StreamApplication("counts")
    app.store("counts", value=count)
    keyed = app.input("local.rows", value=ps.Columns(TABLE.schema)).partition_by(ps.col("key"))
    keyed.process_batch(Counts, stores=["counts"], schema=count.schema).send_to(app.output("local.out"))
    made = TestRunner(app, partitions=1)
    yield made
    made.close()


def test_a_processor_gives_dataframes(runner: TestRunner) -> None:
    for keys in ("aab", "bc"):
        runner.input("local.rows", [{"key": key, "n": 1} for key in keys]).run()
    found = {message.key: message.value["count"] for message in runner.output("local.out")}
    assert found == {"a": 2, "b": 2, "c": 1}
    assert len(runner.output("local.out")) == 4


@pytest.mark.parametrize("function", [lambda batch: frame_of(batch)["n"] > 1, lambda batch: batch["n"].to_numpy() > 1])
def test_a_filter_gives_any_column_of_truth_values(function: Callable[[Any], Any]) -> None:
    app = ps.StreamApplication("filter")
    kept = app.input("local.rows", value=ps.Columns(TABLE.schema)).filter_batches(function)
    doubled = kept.map_batches(lambda batch: frame_of(batch).select(pl.col("n") * 2), pa.schema({"n": pa.int64()}))
    doubled.send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.rows", ROWS).run()
    assert [message.value for message in runner.output("local.out")] == [{"n": 4}, {"n": 6}]
    runner.close()
