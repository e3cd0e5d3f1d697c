"""Processors of columns in a whole job in this process, compared with a plain computation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType, StructType, YearMonthIntervalType

import penstock as ps
import penstock.spark as pss
from penstock.errors import ConfigError
from penstock.graph.stores import StoreLayout
from penstock.spark.processor.columns import declare_columns
from penstock.spark.processor.fields import chunk
from penstock.spark.state_frames import is_state_variable, variable_columns
from penstock.spark.transform import _check_form
from penstock.testing import TestRunner
from tests.support.oracles.processors import application, read_rows, spec_of

ROWS = StructType().add("user", StringType()).add("day", LongType()).add("amount", LongType())
TOTALS = StructType().add("n", LongType()).add("total", DoubleType())
LAST = StructType().add("amount", LongType())
OUT = StructType().add("user", StringType()).add("day", LongType()).add("n", LongType()).add("total", DoubleType())
KEY = ("user", "day")


class Totals(pss.ColumnsProcessor):
    """Counts and sums the amounts of each user and day, and forgets those that reach a hundred."""

    state = {"totals": TOTALS, "last": LAST}

    def init(self) -> None:
        self.batches = 0

    def handle_batch(self, batch: pss.ProcessorBatch, state: Mapping[str, pss.ColumnState]) -> pa.Table | None:
        self.batches += 1
        amounts = batch.rows["amount"].to_numpy()
        if 13 in amounts:
            raise ValueError("thirteen")
        before, size = state["totals"].get_many(batch.keys), len(batch.keys)
        n = before["n"].fill_null(0).to_numpy() + np.bincount(batch.groups, minlength=size)
        total = before["total"].fill_null(0.0).to_numpy() + np.bincount(batch.groups, amounts, minlength=size)
        totals = pa.table({"n": n, "total": total})
        state["totals"].put_many(batch.keys, totals)
        full = pa.array(total >= 100)
        state["totals"].delete_many(batch.keys.filter(full))
        # Keys that repeat: the last row counts.
        state["last"].put_many(batch.rows, batch.rows.select(["amount"]))
        last = state["last"].get_many(batch.keys)["amount"]
        assert last.to_pylist() == [int(amounts[batch.groups == number][-1]) for number in range(size)]
        found = pa.Table.from_batches([batch.keys])
        return totals.append_column("day", found["day"]).append_column("user", found["user"]) if size else None


class Plain:
    """The same, a row at a time."""

    def __init__(self) -> None:
        self.totals: dict[tuple[Any, Any], tuple[int, float]] = {}

    def batch(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            n, total = self.totals.get((row["user"], row["day"]), (0, 0.0))
            self.totals[row["user"], row["day"]] = n + 1, total + row["amount"]
        touched = dict.fromkeys((row["user"], row["day"]) for row in rows)
        out = [dict(zip(OUT.names, (*key, *self.totals[key]), strict=True)) for key in touched]
        for key in touched:
            if self.totals[key][1] >= 100:
                del self.totals[key]
        return out


def messages(rows: list[dict[str, Any]]) -> list[tuple[None, bytes]]:
    schema = spec_of(Totals(), KEY, ROWS, OUT, form="columns").input
    half = (len(rows) + 1) // 2
    return [(None, chunk(pa.RecordBatch.from_pylist(some, schema))) for some in (rows[:half], rows[half:]) if some]


@contextmanager
def running(processor: pss.ColumnsProcessor, **options: Any) -> Iterator[TestRunner]:
    spec = spec_of(processor, KEY, ROWS, OUT, form="columns")
    runner = TestRunner(application(spec), partitions=1, **options)
    try:
        yield runner
    finally:
        runner.close()


BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.fixed_dictionaries(
                {
                    "user": st.none() | st.sampled_from(["ann", "bob", ""]),
                    "day": st.none() | st.integers(0, 2),
                    "amount": st.integers(20, 60),
                }
            ),
            max_size=12,
        ),
        st.sampled_from(["", "commit", "crash"]),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("factory", ["columns", "rocksdb"])
@given(batches=BATCHES)
def test_it_gives_what_a_plain_computation_gives(factory: str, batches: list[tuple[list[dict[str, Any]], str]]) -> None:
    plain, expected = Plain(), list[dict[str, Any]]()
    with running(Totals(), config={"stores.totals.factory": factory, "stores.last.factory": factory}) as runner:
        for rows, then in batches:
            runner.input("m.rows", messages(rows)).run()
            expected += plain.batch(rows)
            if then:
                runner.commit()
            if then == "crash":
                runner.crash().restore()
        assert read_rows([message.value for message in runner.output("m.out")], OUT) == expected


def test_a_batch_that_fails_leaves_nothing() -> None:
    ann = {"user": "ann", "day": 1, "amount": 20}
    with running(Totals()) as runner:
        runner.input("m.rows", messages([ann])).run().commit()
        with pytest.raises(ps.UserCodeError, match="thirteen"):
            runner.input("m.rows", messages([ann, {**ann, "amount": 13}])).run()


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ([{"user": "ann"}], "the result of `handle_batch`: expected a RecordBatch, .*, not a value of type list"),
        (pa.table({"user": ["ann"], "day": [1], "n": [1]}), "the batch has no column `total`"),
        (pa.table({"user": ["ann"], "day": ["x"], "n": [1], "total": [1.0]}), "column `day` does not fit int64"),
    ],
)
def test_a_result_that_does_not_fit_is_named(result: Any, problem: str) -> None:
    class Wrong(pss.ColumnsProcessor):
        def handle_batch(self, batch: pss.ProcessorBatch, state: Mapping[str, pss.ColumnState]) -> Any:
            return result

    with running(Wrong()) as runner, pytest.raises(ps.UserCodeError, match=problem):
        runner.input("m.rows", messages([{"user": "ann", "day": 1, "amount": 1}])).run()


@pytest.mark.parametrize(
    ("keys", "rows", "problem"),
    [
        (pa.table({"user": ["ann"]}), pa.table({"amount": [1]}), "the keys have no column `day`; they have user"),
        (pa.table({"user": ["ann"], "day": [1.5]}), pa.table({"amount": [1]}), "column `day` of the keys does not fit"),
        (pa.table({"user": ["ann"], "day": [1]}), pa.table({"amount": [1, 2]}), "`last`: 1 keys and 2 rows"),
        (pa.table({"user": ["ann"], "day": [1]}), pa.table({"amounts": [1]}), "the batch has no column `amount`"),
    ],
)
def test_keys_and_rows_that_do_not_fit_are_named(keys: pa.Table, rows: pa.Table, problem: str) -> None:
    class Wrong(pss.ColumnsProcessor):
        state = {"last": LAST}

        def handle_batch(self, batch: pss.ProcessorBatch, state: Mapping[str, pss.ColumnState]) -> None:
            state["last"].put_many(keys, rows)

    with running(Wrong()) as runner, pytest.raises(ps.UserCodeError, match=problem):
        runner.input("m.rows", messages([{"user": "ann", "day": 1, "amount": 1}])).run()


class Scans(pss.ColumnsProcessor):
    """Gives everything that it has ever seen, in each batch."""

    state = {"last": LAST}

    def handle_batch(self, batch: pss.ProcessorBatch, state: Mapping[str, pss.ColumnState]) -> pa.Table:
        state["last"].put_many(batch.rows, batch.rows.select(["amount"]))
        found = [
            pa.table({"user": keys["user"], "day": keys["day"], "n": rows["amount"], "total": rows["amount"]})
            for keys, rows in state["last"].scan(2)
        ]
        return pa.concat_tables(found)


def test_a_scan_has_every_key_with_state() -> None:
    rows: list[dict[str, Any]] = [
        {"user": user, "day": day, "amount": day + 20} for user in ("ann", None) for day in (1, 2, 3)
    ]
    with running(Scans()) as runner:
        for some in (rows[:1], rows[1:]):
            runner.input("m.rows", messages(some)).run()
        found = read_rows([message.value for message in runner.output("m.out")], OUT)[1:]
    assert sorted(map(str, found)) == sorted(
        str({"user": row["user"], "day": row["day"], "n": row["amount"], "total": float(row["amount"])}) for row in rows
    )


def test_a_state_variable_is_read_by_the_schema_in_its_layout() -> None:
    spec = spec_of(Totals(), KEY, ROWS, OUT, form="columns")
    store = spec.declared.stores("processor", spec.key, "none")[0]
    layout = StoreLayout(("processor",), store.key_serde.name, store.value_serde.name)
    assert is_state_variable(layout)
    types: dict[str, Any] = {"string": StringType(), "bigint": LongType(), "double": DoubleType()}
    keys, value, columns = variable_columns("totals", layout, types.__getitem__)
    assert [field.name for field in keys] == ["key"]
    assert value.dataType == TOTALS
    packed = ps.Columns(pa.schema({"n": pa.int64(), "total": pa.float64()})).for_store_values()
    assert columns.value.array("totals", 0, [packed.to_bytes({"n": 1, "total": 2.5})]).to_pylist() == [
        {"n": 1, "total": 2.5}
    ]


class NoSchema(Totals):
    state = {"totals": StructType().add("v", YearMonthIntervalType())}


class NoDict(Totals):
    state = ["totals"]  # type: ignore[assignment]


class Generates(Totals):
    async def handle_batch(self, batch: Any, state: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("processor", "problem"),
    [
        (Plain(), 'form="columns" takes a pss.ColumnsProcessor, not a Plain'),
        (NoSchema(), "the state variable `totals`: .*Cast the column, or leave it out"),
        (NoDict(), r"NoDict\.state is a dict, as"),
        (Generates(), "transform_with_state: `handle_batch` of Generates is `async def`"),
    ],
)
def test_a_processor_that_would_not_work_is_refused(processor: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        declare_columns(processor, lambda ddl: TOTALS)


@pytest.mark.parametrize(
    ("form", "mode", "given", "problem"),
    [
        ("rows", "none", {}, 'form="rows": it is "row", "pandas" or "columns"'),
        ("columns", "eventtime", {}, "has no timers"),
        ("columns", "none", {"initial_state": True}, "begins with empty state, so leave out initial_state"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(form: Any, mode: Any, given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _check_form(form, mode, given)
