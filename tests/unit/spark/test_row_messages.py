"""Rows as messages: from columns of Arrow to bytes, to Row objects, and back."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

import penstock as ps
import penstock.spark as pss
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.spark.processor.rows import arrow_schema
from penstock.spark.row_batches import RowsReader, RowsWriter
from penstock.spark.row_serde import check_keyed, check_same, with_schemas
from penstock.testing import TestRunner
from tests.support.tools.profiles import examples
from tests.unit.spark.processor.test_codec import TYPES, rows

MOMENTS = st.datetimes(datetime.datetime(1960, 1, 3), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC))  # noqa: DTZ001
TIMED = st.one_of(
    TYPES,
    st.just((TimestampType(), MOMENTS)),
    st.just((ArrayType(TimestampType()), st.lists(st.none() | MOMENTS, max_size=3))),
)
VISITS = StructType([StructField("user", StringType()), StructField("n", IntegerType(), nullable=False)])


def as_spark_sends(schema: StructType, values: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """The columns that Spark makes of rows, by PySpark's own conversion."""
    table = LocalDataToArrowConversion.convert(values, schema, False)
    return table.cast(arrow_schema(schema)).combine_chunks().to_batches()[0]


@examples(0.7)
@given(rows(TIMED))
def test_rows_are_what_they_were(given: tuple[StructType, list[tuple[Any, ...]]]) -> None:
    schema, values = given
    columns, serde = as_spark_sends(schema, values), pss.Rows(schema)
    (messages,) = RowsReader(schema).read([columns], 7, 1)
    assert [message[0] for message in messages] == [7] * len(values)
    assert {message[2] for message in messages} == {None}
    data = [message[3] for message in messages]
    assert data == [serde.to_bytes(row) for row in values]
    objects = [serde.from_bytes(each) for each in data if each is not None]
    assert objects == values
    assert all(list(each.__fields__) == schema.names for each in objects)
    assert [serde.to_bytes(each) for each in objects] == data
    (back,) = RowsWriter(schema).write(data, arrow_schema(schema))
    assert back.to_pylist() == columns.to_pylist()


def test_many_rows_are_several_lists_and_none_are_none() -> None:
    schema = StructType([StructField("n", LongType())])
    columns = pa.RecordBatch.from_pylist([{"n": n} for n in range(10_000)], arrow_schema(schema))
    lists = list(RowsReader(schema).read([columns.slice(0, 0), columns], 0, 1))
    assert sum(map(len, lists)) == 10_000
    assert max(map(len, lists)) <= 4096
    data = [message[3] for messages in lists for message in messages]
    assert [row["n"] for row in map(pss.Rows(schema).from_bytes, data)] == list(range(10_000))  # type: ignore[arg-type]
    assert sum(each.num_rows for each in RowsWriter(schema).write(data, arrow_schema(schema))) == 10_000
    assert list(RowsWriter(schema).write([], arrow_schema(schema))) == []


@pytest.mark.parametrize("kind", [TimestampType(), TimestampNTZType()])
def test_event_times(kind: Any) -> None:
    schema = StructType([StructField("at", kind)])
    zone = datetime.UTC if isinstance(kind, TimestampType) else None
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, 234_567, tzinfo=zone)
    columns = pa.RecordBatch.from_pylist([{"at": moment}, {"at": None}], arrow_schema(schema))
    (messages,) = RowsReader(schema, "at").read([columns], 0, 1)
    assert [message[1] for message in messages] == [1_234, 0]


def test_what_a_row_may_be() -> None:
    serde = pss.Rows(VISITS)
    data = serde.to_bytes(("a", 1))
    for same in (Row(user="a", n=1), Row(n=1, user="a"), {"n": 1, "user": "a"}, ["a", 1], serde.from_bytes(data)):
        assert serde.to_bytes(same) == data
    assert serde.from_bytes(serde.to_bytes({"n": 1})) == (None, 1)
    again = pickle.loads(pickle.dumps(serde))
    assert again.from_bytes(data).user == "a"
    assert pickle.loads(pickle.dumps(again.from_bytes(data))) == Row(user="a", n=1)
    assert again.name == serde.name == "rows(user:string,n:int)"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("a",), "2 fields"),
        (("a", "x"), "field `n` of type int cannot hold 'x' of type str"),
        (("a", 2**31), "field `n` of type int cannot hold 2147483648"),
        (("a", None), "column `n` is NOT NULL"),
        ({"user": "a", "m": 1}, "there is no column `m`; the columns are user, n"),
        (Row(user="a"), "the row has no column `n`; it has user"),
        (7, "a row is a Row, a dict or a tuple, not a value of type int"),
    ],
)
def test_rows_that_do_not_fit(row: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        pss.Rows(VISITS).to_bytes(row)


def test_schemas_that_are_none() -> None:
    with pytest.raises(ConfigError, match="takes a StructType or a schema as text"):
        pss.Rows(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"variant. Cast the column, or leave it out"):
        pss.Rows(StructType([StructField("v", VariantType())]))
    with pytest.raises(ConfigError, match="2 columns have the name `n`"):
        pss.Rows(StructType([StructField("n", LongType()), StructField("n", LongType())]))
    with pytest.raises(ConfigError, match="known once the application runs in a query"):
        _ = pss.Rows().schema
    with pytest.raises(ConfigError, match=r"as in a test, write pss.Rows\(StructType"):
        pss.Rows("user STRING").to_bytes(("a",))
    with pytest.raises(ConfigError, match="has no schema"):
        pss.Rows().to_bytes(("a",))


def application(visits: Any) -> ps.StreamApplication:
    app = ps.StreamApplication("visits")
    counted = app.input("spark.visits", value=visits).partition_by(lambda row: row.user)
    sums = ps.Windows.count(2, aggregates={"n": ps.Sum(lambda row: row.n)})
    panes = counted.window(sums).map(lambda pane: (pane.key, pane.message["n"]))
    panes.send_to(app.output("spark.sums", value=pss.Rows(VISITS)))
    counted.join(counted.filter(lambda row: row.n > 1), lambda a, b: [a.n, b.n], within_ms=1, id="pairs")
    return app


def test_an_application_of_rows_runs_in_a_test() -> None:
    app = application(pss.Rows(VISITS))
    runner = TestRunner(app).input("spark.visits", [Row(user="a", n=1), (None, ("b", 7)), {"user": "a", "n": 2}]).run()
    assert [message.value for message in runner.output("spark.sums")] == [Row(user="a", n=3)]
    assert runner.output("spark.sums")[0].value.n == 3


def _parse(ddl: str) -> StructType:
    assert ddl == "user STRING, n INT NOT NULL"
    return VISITS


@pytest.mark.parametrize("declared", [None, "user STRING, n INT NOT NULL"])
def test_the_columns_come_with_the_dataframe(declared: str | None) -> None:
    app = application(pss.Rows(declared))
    graph, again = (with_schemas(app.graph(), {"visits": VISITS}, _parse) for _ in range(2))
    known = application(pss.Rows(VISITS)).graph()

    def names(graph: ApplicationGraph) -> list[tuple[str, ...]]:
        return [
            *((op.id, op.key_serde.name, op.value_serde.name) for op in graph.operators),
            *((store.name, store.value_serde.name) for store in graph.stores),
        ]

    assert names(graph) == names(again) == names(known)
    assert "rows#" in str(names(app.graph()))  # the application's own is as it was


def test_columns_that_nobody_names() -> None:
    app = ps.StreamApplication("visits")
    app.input("spark.visits", value=pss.Rows()).send_to(app.output("spark.sums", value=pss.Rows()))
    with pytest.raises(ConfigError, match=r"pss.Rows\(\) is not the serde of an input: name its columns"):
        with_schemas(app.graph(), {"visits": VISITS}, _parse)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (StructType(VISITS.fields[:1]), "has no column `n`, which is declared as int"),
        (StructType([VISITS["n"], VISITS["user"]]), "has `n int` as column 1, where `user string` is declared"),
        (StructType([*VISITS, StructField("m", LongType())]), "has the column `m`, which is not declared"),
    ],
)
def test_other_columns_than_declared(found: StructType, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"`spark.visits` {problem}"):
        check_same("spark.visits", VISITS, found)
    check_same("spark.visits", VISITS, StructType([StructField("user", StringType(), nullable=False), VISITS["n"]]))


class Count(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Nothing to do."""


def test_state_needs_a_key() -> None:
    def graph(*, keyed: bool) -> ApplicationGraph:
        app = ps.StreamApplication("visits")
        app.store("counts")
        visits = app.input("spark.visits", value=pss.Rows(VISITS)).filter(lambda row: row.n > 0)
        if keyed:
            visits = visits.partition_by(lambda row: row.user)
        visits.process(Count)
        visits.process(Count, stores=["counts"], id="count")
        return app.graph()

    check_keyed(graph(keyed=True))
    with pytest.raises(ConfigError, match=r"operator `count` has state by key.*put .partition_by"):
        check_keyed(graph(keyed=False))
