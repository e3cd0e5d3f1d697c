"""Operators on columns: the same declaration gives the same results on rows, through crashes as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.state.engines.memory import ColumnEngine
from penstock.testing import TestRunner
from tests.support.tools.partial_aggregates import added_up
from tests.support.tools.profiles import examples

SCHEMA = pa.schema(
    [pa.field("key", pa.string()), pa.field("n", pa.int64()), pa.field("x", pa.float64()), pa.field("s", pa.string())]
)
COLUMNS = ps.Columns(SCHEMA)
n, x, s = ps.col("n"), ps.col("x"), ps.col("s")
AGGREGATES = {
    "count": ps.Count(),
    "known": ps.Count(n),
    "sum": ps.Sum(n),
    "total": ps.Sum(x * 2),
    "mean": ps.Mean(n),
    "variance": ps.Variance(x),
    "least": ps.Min(n),
    "greatest": ps.Max(x),
    "first_text": ps.Min(s),
    "last_text": ps.Max(s),
    "first": ps.First(s),
    "last": ps.Last(n),
}

ROWS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b", "c", "Zürich"])},
        optional={
            "n": st.none() | st.integers(-(2**40), 2**40),
            "x": st.none() | st.floats(-1e6, 1e6, allow_nan=False),
            "s": st.none() | st.text("aé€", max_size=3),
        },
    ),
    max_size=12,
)
STEPS = st.lists(st.tuples(ROWS, st.integers(0, 50), st.sampled_from(["", "commit", "crash"])), min_size=1, max_size=5)


@contextmanager
def running(app: ps.StreamApplication, **options: Any) -> Iterator[TestRunner]:
    runner = TestRunner(app, **options)
    try:
        yield runner
    finally:
        runner.close()


def totals(value: ps.Serde[Any]) -> ps.StreamApplication:
    app = ps.StreamApplication("totals")
    kept = app.input("local.rows", value=value).filter(n.is_null() | (n > -(2**39)))
    by_key = kept.partition_by(ps.col("key"))
    _ = by_key.aggregate(AGGREGATES, id="totals").send_to(app.output("local.totals"))
    return app


def results(value: ps.Serde[Any], steps: list[tuple[list[dict[str, Any]], int, str]]) -> dict[Any, list[Any]]:
    """The results of each key, in order."""
    with running(totals(value)) as runner:
        for rows, timestamp, then in steps:
            runner.input("local.rows", rows, timestamp=timestamp).run(batch_messages=5)
            if then == "commit":
                runner.commit()
            elif then == "crash":
                runner.crash().restore()
        found: dict[Any, list[Any]] = {}
        for message in runner.run().output("local.totals"):
            found.setdefault(message.key, []).append(message.value)
        return found


def is_close(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-3)
    return one == other and type(one) is type(other)


@given(STEPS, st.booleans())
def test_rows_and_columns_have_equal_aggregates(
    steps: list[tuple[list[dict[str, Any]], int, str]], partial: bool
) -> None:
    by_row = results(ps.Json(), steps)
    with added_up(always=partial):
        by_column = results(COLUMNS, steps)
    assert by_column.keys() == by_row.keys()
    for key, values in by_row.items():
        assert len(values) == len(by_column[key])
        for row, column in zip(values, by_column[key], strict=True):
            assert column.keys() == row.keys()
            assert all(is_close(column[name], row[name]) for name in row), (column, row)


def test_aggregates_are_those_of_a_plain_computation() -> None:
    rows = [{"key": "a", "n": number, "x": number / 2, "s": f"t{number % 7}"} for number in range(100)]
    found = results(COLUMNS, [(rows[:50], 5, "commit"), (rows[50:70], 3, "crash"), (rows[70:], 9, "")])["a"][-1]
    values = [number / 2 for number in range(100)]
    mean = sum(values) / 100
    assert found.pop("variance") == pytest.approx(sum((value - mean) ** 2 for value in values) / 99)
    assert found == {
        "count": 100,
        "known": 100,
        "sum": 4950,
        "total": 4950.0,
        "mean": 49.5,
        "least": 0,
        "greatest": 49.5,
        "first_text": "t0",
        "last_text": "t6",
        "first": "t1",  # of message 50, which is the earliest
        "last": 99,
    }


def test_their_stores_are_kept_in_columns() -> None:
    with running(totals(COLUMNS)) as runner:
        runner.input("local.rows", [{"key": "a"}]).run()
        assert isinstance(runner._engine(0, "totals.aggregate"), ColumnEngine)


@pytest.mark.parametrize("value", [ps.Json(), COLUMNS], ids=["rows", "columns"])
def test_a_message_without_a_key_has_no_group(value: ps.Serde[Any]) -> None:
    place = "in operator `totals`, at stream `local.rows` partition 0 offset 1 "
    with (
        running(totals(value)) as runner,
        pytest.raises(ps.UserCodeError, match=rf"key of the message is null(.*\n)+  {place}"),
    ):
        runner.input("local.rows", [{"key": "a"}, {"n": 1}], partition=0).run()


def test_a_sum_that_does_not_fit_ends_the_run() -> None:
    most = 2**63 - 1
    with running(totals(COLUMNS)) as runner:
        runner.input("local.rows", [{"key": "a", "n": most}, {"key": "a", "n": -5}, {"key": "a", "n": 5}]).run()
        assert runner.output("local.totals")[-1].value["sum"] == most
        with pytest.raises(ps.UserCodeError, match="a sum does not fit its type: one of whole numbers has 64 bits"):
            runner.input("local.rows", [{"key": "a", "n": 1}]).run()


def test_nan_counts_only_where_there_is_nothing_else() -> None:
    def with_nan(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "x": math.nan if row["x"] is None else row["x"]}

    app = ps.StreamApplication("nan")
    by_key = app.input("local.rows").map(with_nan).partition_by(ps.col("key"), value=COLUMNS)
    found = by_key.aggregate({"least": ps.Min(x), "greatest": ps.Max(x)})
    _ = found.map(lambda row: [repr(row["least"]), repr(row["greatest"])]).send_to(app.output("local.out"))
    values = [("a", None), ("b", None), ("a", 2.5), ("a", None), ("a", 1.5)]
    with running(app, partitions=1) as runner:
        runner.input("local.rows", [{"key": key, "x": value} for key, value in values]).run()
        results = {message.key: message.value for message in runner.output("local.out")}
    assert results == {"a": ["1.5", "2.5"], "b": ["nan", "nan"]}
    for aggregate, expected in ((ps.Min(), 1.5), (ps.Max(), 2.5)):
        state = None
        for value in (math.nan, 2.5, math.nan, 1.5):
            state = aggregate.add(state, value, 0)
        assert state == expected


class Deltas(ps.BatchProcessor):
    """Emits, for each message, the difference to the last value of its key in the batch before."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.last = context.store("last")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        before = self.last.get_many(batch.keys)["n"]
        self.last.put_many(batch.keys, batch.values.select(["n"]))
        collector.emit(batch.keys, pa.record_batch({"delta": pc.subtract(batch["n"], before)}))


def deltas(ttl_ms: int | None = None) -> ps.StreamApplication:
    number = ps.Columns(pa.schema({"n": pa.int64()}))
    app = ps.StreamApplication("deltas")
    app.store("last", value=number, ttl_ms=ttl_ms)
    found = app.input("local.rows", value=number).process_batch(
        Deltas, stores=["last"], schema=pa.schema({"delta": pa.int64()})
    )
    _ = found.send_to(app.output("local.deltas"))
    return app


NUMBERS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-1000, 1000)), max_size=10)


@pytest.mark.parametrize("ttl_ms", [None, 10**9], ids=["kept", "with a time to live"])
@given(batches=st.lists(st.tuples(NUMBERS, st.sampled_from(["", "commit", "crash"])), max_size=5))
def test_a_processor_sees_earlier_writes(ttl_ms: int | None, batches: list[tuple[list[tuple[str, int]], str]]) -> None:
    with running(deltas(ttl_ms), partitions=1) as runner:
        last: dict[str, int] = {}
        committed, read_since, expected = dict(last), list[list[tuple[str, int]]](), list[int | None]()

        def process(messages: list[tuple[str, int]]) -> None:
            expected.extend(number - last[key] if key in last else None for key, number in messages)
            last.update(messages)

        for messages, then in batches:
            runner.input("local.rows", [(key, {"n": number}) for key, number in messages]).run()
            process(messages)
            read_since.append(messages)
            if then == "commit":
                runner.commit()
                committed, read_since = dict(last), []
            elif then == "crash":
                runner.crash().restore().run()
                last = dict(committed)
                process([message for some in read_since for message in some])
        assert [message.value["delta"] for message in runner.output("local.deltas")] == expected
        assert {key: row["n"] for key, row in runner.store("last").items()} == last


def test_of_a_key_that_is_put_twice_the_last_row_counts() -> None:
    with running(deltas(), partitions=1) as runner:
        runner.input("local.rows", [("a", {"n": 1}), ("b", {"n": 5}), ("a", {"n": 2})]).run()
        assert runner.store("last") == {"a": {"n": 2}, "b": {"n": 5}}


class Mixed(ps.BatchProcessor):
    """Uses a store by column and by key, in the same batch."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.store = context.store("numbers")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        store = self.store
        store.put_many(batch.keys, batch.values)
        assert store["1"] == {"n": 1}
        store["1"] = {"n": 10}
        assert store.get_many(pa.array(["1", "2", "none", "1"]))["n"].to_pylist() == [10, 2, None, 10]
        store.delete_many(pa.array(["2", "none", "2"]))
        assert store.get("2") is None
        store.put_many(pa.array(["9", "9"]), pa.record_batch({"n": [8, 9]}))
        entries = {key: row for part in store.scan(2) for key, row in zip(*(p.to_pylist() for p in part), strict=True)}
        assert entries == dict(store.all()) == {"1": {"n": 10}, "3": {"n": 3}, "9": {"n": 9}}
        assert [key for key, _ in store.range("2", "9")] == ["3"]


@pytest.mark.parametrize("ttl_ms", [None, 10**9], ids=["kept", "with a time to live"])
def test_columns_and_single_keys_see_the_same_entries(ttl_ms: int | None) -> None:
    number = ps.Columns(pa.schema({"n": pa.int64()}))
    app = ps.StreamApplication("mixed")
    app.store("numbers", value=number, ttl_ms=ttl_ms)
    app.input("local.rows", value=number).process_batch(Mixed, stores=["numbers"])
    with running(app, partitions=1) as runner:
        runner.input("local.rows", [(str(number), {"n": number}) for number in (1, 2, 3)]).run().commit()
        runner.crash().restore()
        assert runner.store("numbers") == {"1": {"n": 10}, "3": {"n": 3}, "9": {"n": 9}}
        runner.input("local.rows", [(str(number), {"n": number}) for number in (1, 2, 3)]).run()


BAD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda store: store.get_many(pa.array(["a", None])), "store `numbers`: a key is null"),
    (lambda store: store.get_many(pa.array([1])), r"the key 1 is an int, but keys are declared as ps.String\(\)"),
    (lambda store: store.put_many(pa.array(["a"]), pa.record_batch({"m": [1]})), "the batch has no column `n`"),
    (lambda store: store.put_many(pa.array(["a"]), pa.record_batch({"n": ["x"]})), "column `n` does not fit int64"),
    (lambda store: store.put_many(pa.array(["a"]), pa.record_batch({"n": [1, 2]})), "got 1 keys and 2 rows"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text for _, text in BAD])
def test_what_does_not_fit_a_store_is_refused(call: Callable[[Any], Any], text: str) -> None:
    class Calls(ps.BatchProcessor):
        def init(self, context: ps.BatchProcessorContext) -> None:
            self.store = context.store("numbers")

        def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
            call(self.store)

    number = ps.Columns(pa.schema({"n": pa.int64()}))
    app = ps.StreamApplication("bad")
    app.store("numbers", value=number)
    app.input("local.rows", value=number).process_batch(Calls, stores=["numbers"])
    with running(app) as runner, pytest.raises(ps.UserCodeError, match=text):
        runner.input("local.rows", [{"n": 1}]).run()


def chain(value: ps.Serde[Any]) -> ps.StreamApplication:
    """Operators of columns and of rows, mixed."""
    app = ps.StreamApplication("chain")
    rows = app.input("local.rows", value=value).filter(n > 0)
    doubled = rows.select("key", twice=n * 2, half=n / 2, is_a=s.is_in(["a"]), s=s.fill_null("-"))
    odd = doubled.map(lambda row: {**row, "odd": row["twice"] % 4 == 2}).filter(ps.col("odd"))
    _ = odd.flat_map(lambda row: [row, row]).send_to(app.output("local.out"))
    return app


@given(ROWS)
def test_operators_of_columns_and_of_rows_mix(rows: list[dict[str, Any]]) -> None:
    found = []
    for value in (ps.Json(), COLUMNS):
        with running(chain(value), partitions=1) as runner:
            found.append([message.value for message in runner.input("local.rows", rows).run().output("local.out")])
    assert found[0] == found[1]


KEYS: list[tuple[ps.Serde[Any], Any, Callable[[dict[str, Any]], Any]]] = [
    (ps.String(), ps.col("key"), lambda row: row["key"]),
    (ps.Long(), n, lambda row: row["n"]),
    (ps.Double(), x, lambda row: row["x"]),
    (ps.Tuple(ps.String(), ps.Long()), ps.col("key", "n"), lambda row: (row["key"], row["n"])),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("serde", "key", "of"), KEYS, ids=["string", "long", "double", "tuple"])
@given(rows=ROWS)
def test_the_key_becomes_a_column(serde: Any, key: Any, of: Callable[[Any], Any], rows: list[dict[str, Any]]) -> None:
    full = [{"s": None, **row} for row in rows if row.get("n") is not None and row.get("x") is not None]
    found = []
    for value in (ps.Json(), COLUMNS):
        app = ps.StreamApplication("keys")
        keyed = app.input("local.rows", value=value).partition_by(key, key=serde)
        if value is COLUMNS:
            names = ("k", "l") if isinstance(serde, ps.Tuple) else ("k",)
            _ = keyed.with_key(*names).send_to(app.output("local.keyed", key=serde))
        _ = keyed.send_to(app.output("local.out", key=serde))
        with running(app, partitions=3) as runner:
            runner.input("local.rows", full).run()
            found.append([(message.partition, message.key) for message in runner.output("local.out")])
            if value is COLUMNS:
                added = [[message.value[name] for name in names] for message in runner.output("local.keyed")]
                expected = [of(message.value) for message in runner.output("local.out")]
                assert added == [[*key] if isinstance(key, tuple) else [key] for key in expected]
    assert found[0] == found[1]


def test_a_row_that_does_not_fit_is_one_dead_letter() -> None:
    app = ps.StreamApplication("letters")
    rows = app.input("local.rows", value=COLUMNS).filter(n != 3)
    ratios = rows.map_batches(
        lambda batch: pa.record_batch({"r": pc.divide(pa.scalar(12), batch["n"])}), pa.schema({"r": pa.int64()})
    )
    _ = ratios.send_to(app.output("local.out"))
    json_rows = ps.StreamApplication("letters")
    _ = json_rows.input("local.rows").send_to(json_rows.output("local.out"))
    with running(app, partitions=1, dead_letter="local.dead") as runner:
        # As another program would write them: the serde of the input refuses what does not fit.
        values = [{"n": 1}, {"n": "one"}, {"n": 3}, {"n": 0}, {"n": 4}]
        _append(runner, values)
        runner.run()
        assert [message.value for message in runner.output("local.out")] == [{"r": 12}, {"r": 3}]
        assert runner.dead_letters == 2
        letters = [str(message.value) for message in runner.output("local.dead")]
        assert "$.n" in letters[0]
        assert "divide by zero" in letters[1]


def _append(runner: TestRunner, values: list[Any]) -> None:
    from penstock.graph.serdes import input_place
    from penstock.testing.runner.streams import StreamOfTest

    name = ps.SystemStream.parse("local.rows")
    stream = StreamOfTest(name, input_place(name), ps.String(), ps.Json())
    runner._home.streams.append(stream, values, None, 0)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda rows: rows.filter(ps.col("m") > 0), "filter(): there is no column `m`; the columns are key, n, x, s"),
        (lambda rows: rows.filter(n + 1), "filter(): `(n + 1)` is int64, not a condition"),
        (lambda rows: rows.filter(n > "a"), "filter(): `(n > 'a')` does not fit the types of the columns"),
        (lambda rows: rows.filter(n > 0, envelope=True), "an expression is of the value"),
        (lambda rows: rows.partition_by(ps.col("m")), "partition_by(): there is no column `m`"),
        (lambda rows: rows.partition_by(ps.col("key", "m")), "partition_by(): there is no column `m`"),
        (lambda rows: rows.with_key("s"), "with_key(): there is a column `s` already"),
        (lambda rows: rows.with_key("k", "l"), "the keys are of string, so give 1 name"),
        (
            lambda rows: rows.partition_by(n),
            "the column is int64, and the keys are of ps.String(): give key=ps.Long()",
        ),
        (
            lambda rows: rows.partition_by(n > 1),
            "the column is bool, and the keys are of ps.String(): no keys of Penstock",
        ),
        (lambda rows: rows.partition_by(ps.col("key", "n")), "give key=ps.Tuple(ps.String(), ps.Long())"),
        (lambda rows: rows.partition_by(n, key=ps.Json()).with_key("k"), "the keys of `partition_by-1` have no type"),
        (lambda rows: rows.select("key", key=n), "a column is given twice"),
        (lambda rows: rows.select(), "at least one column"),
        (lambda rows: rows.aggregate({"a": ps.Sum(s)}), "values of type string are no numbers"),
        (
            lambda rows: rows.aggregate({"a": ps.Count(), "q": ps.ApproxQuantiles(s)}),
            "aggregate(): `q`: ApproxQuantiles of `s`: values of type string are no numbers. Take a function",
        ),
        (
            lambda rows: rows.window(ps.Windows.session(50, aggregates={"q": ps.ApproxQuantiles(s)})),
            "window(): `q`: ApproxQuantiles of `s`: values of type string are no numbers",
        ),
        (
            lambda rows: rows.window(ps.Windows.count(2, aggregates={"a": ps.Max(ps.col("m"))})),
            "window(): `a`: there is no column `m`",
        ),
        (lambda rows: rows.aggregate({"a": 1}), "an aggregate is one of ps.Count(), ps.Sum(...), ..."),
        (lambda rows: rows.map(lambda row: row).map_batches(len, SCHEMA), "the values of `map-1` have no schema"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(build: Callable[[Any], Any], text: str) -> None:
    rows = ps.StreamApplication("bad").input("local.rows", value=COLUMNS)
    with pytest.raises(ps.ConfigError) as caught:
        build(rows)
    assert text in str(caught.value)


def test_a_stream_of_json_has_columns_behind_a_partition_by_and_not_behind_a_select() -> None:
    rows = ps.StreamApplication("json").input("local.rows")
    for without in (rows, rows.select("n"), rows.map(lambda row: row)):
        with pytest.raises(ps.ConfigError, match=r"or in a \.partition_by\(\.\.\., value=\.\.\.\) before"):
            without.map_batches(len, SCHEMA)
        without.partition_by(str, value=COLUMNS).map_batches(len, SCHEMA)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda batch: batch.slice(1), "the function got 2 rows and returned 1"),
        (
            lambda batch: batch.to_pylist(),
            "map_batches returns a pyarrow.RecordBatch or a DataFrame, not list",
        ),
        (lambda batch: batch.drop_columns(["s"]), "the batch has no column `s`"),
    ],
)
def test_a_function_that_returns_something_else_fails(returned: Callable[[Any], Any], text: str) -> None:
    app = ps.StreamApplication("bad")
    rows = app.input("local.rows", value=COLUMNS).map_batches(returned, SCHEMA)
    _ = rows.send_to(app.output("local.out"))
    with running(app, partitions=1) as runner, pytest.raises(ps.UserCodeError, match=text):
        runner.input("local.rows", [{"n": 1}, {"n": 2}]).run()


SHAPES = {
    "tumbling": ps.Windows.tumbling(50, offset_ms=7, aggregates=AGGREGATES, late_to=ps.SystemStream("local", "late")),
    "hopping": ps.Windows.hopping(100, every_ms=40, aggregates={"count": ps.Count(), "sum": ps.Sum(n)}),
}


def windows(value: ps.Serde[Any], shape: str, *, partial: bool) -> ps.StreamApplication:
    """With `partial`, each window has a separate exchange, before which messages can be added up."""
    app = ps.StreamApplication("windows")
    rows = app.input("local.rows", value=value, watermark=ps.BoundedOutOfOrderness(20))
    late = app.output("local.late")
    keyed = rows.partition_by(ps.col("key"))
    _ = (
        keyed.window(SHAPES[shape], id="w")
        .map(lambda pane: [pane.key, pane.window.start_ms, pane.firing, pane.message])
        .send_to(app.output("local.panes"))
    )
    other = rows.partition_by(ps.col("key"), id="other") if partial else keyed
    _ = other.window(SHAPES[shape], rows=True, id="r").send_to(app.output("local.pane-rows"))
    assert late == ps.SystemStream("local", "late")
    return app


@pytest.mark.parametrize("shape", SHAPES)
@given(
    steps=st.lists(st.tuples(ROWS, st.integers(-150, 400), st.sampled_from(["", "commit", "crash"])), max_size=8),
    partial=st.booleans(),
)
@examples(0.5)
def test_rows_and_columns_have_equal_windows(
    shape: str, steps: list[tuple[list[dict[str, Any]], int, str]], partial: bool
) -> None:
    found = []
    for value in (ps.Json(), COLUMNS):
        with added_up(always=partial), running(windows(value, shape, partial=partial), partitions=2) as runner:
            for rows, timestamp, then in steps:
                runner.input("local.rows", rows, timestamp=timestamp).run(batch_messages=7)
                if then == "commit":
                    runner.commit()
                elif then == "crash":
                    runner.crash().restore()
            runner.end_inputs()
            panes = [(m.partition, m.timestamp, m.key, m.value) for m in runner.output("local.panes")]
            of_panes = [
                (m.timestamp, m.key, {"start_ms": m.value[1], "end_ms": m.timestamp + 1, **m.value[3]})
                for m in runner.output("local.panes")
            ]
            assert [(m.timestamp, m.key, m.value) for m in runner.output("local.pane-rows")] == of_panes
            late = [(m.partition, m.timestamp, m.value) for m in runner.output("local.late")]
            assert runner.store("w.window") == {}
            found.append((panes, late))
    (by_row, late_rows), (by_column, late_columns) = found
    assert [pane[:3] for pane in by_column] == [pane[:3] for pane in by_row]
    for (*_, column), (*_, row) in zip(by_column, by_row, strict=True):
        assert column[:3] == row[:3]
        assert all(is_close(column[3][name], row[3][name]) for name in row[3]), (column, row)
    assert [each[:2] for each in late_columns] == [each[:2] for each in late_rows]
    assert [row for *_, row in late_columns] == [dict.fromkeys(SCHEMA.names) | row for *_, row in late_rows]


PLANE = ps.Columns(pa.schema({"model": pa.string(), "seats": pa.int64()}))


def joined(kind: Any, *, pushed: bool, key: ps.Serde[Any], columns: bool) -> ps.StreamApplication:
    app = ps.StreamApplication("joined")
    given: dict[str, Any] = {"side_inputs": ["local.planes"]}
    if pushed:
        given = {"pushed": ps.PushedTable("/nowhere", key="tail", value=("model", "seats"))}
    planes = app.table("planes", key=key, value=PLANE, **given)
    rows = app.input("local.rows", key=key, value=COLUMNS)
    found: ps.MessageStream[Any]
    if columns:
        found = rows.join_table(planes, columns=["seats", "model"], kind=kind)
    else:
        none = {"seats": None, "model": None}
        found = rows.join_table(planes, lambda row, plane: {**row, **(plane or none)}, kind=kind)
    _ = found.send_to(app.output("local.out", key=key))
    return app


@pytest.mark.parametrize("kind", ["inner", "left"])
@pytest.mark.parametrize("key", [ps.String(), ps.Long()], ids=["text", "numbers"])
@pytest.mark.parametrize("pushed", [False, True], ids=["side inputs", "pushed"])
def test_columns_of_a_table_are_added_as_by_a_function(kind: Any, key: ps.Serde[Any], pushed: bool) -> None:
    def tail(number: int) -> Any:
        return f"N{number}" if isinstance(key, ps.String) else number - 3

    planes = {tail(number): {"model": f"A{number}", "seats": number or None} for number in range(4)}
    keys = [tail(number) for number in (0, 1, 5, 1, 3)]
    rows = [*((key, {"n": number}) for number, key in enumerate(keys)), (None, {"n": 9})]
    results = []
    for columns in (False, True):
        with running(joined(kind, pushed=pushed, key=key, columns=columns), partitions=1) as runner:
            if pushed:
                runner.push("planes", [{"tail": name, **plane} for name, plane in planes.items()])
            else:
                runner.side_input("local.planes", planes.items())
            runner.input("local.rows", rows).run()
            results.append([(message.key, message.value) for message in runner.output("local.out")])
    assert results[0] == results[1]
    assert len(results[0]) == (4 if kind == "inner" else 6)
    assert results[0][1] == (keys[1], {"key": None, "n": 1, "x": None, "s": None, "seats": 1, "model": "A1"})


def test_columns_that_a_join_cannot_add_are_refused() -> None:
    app = ps.StreamApplication("joined")
    rows = app.input("local.rows", value=COLUMNS)
    written, plain = app.table("written", value=PLANE), app.table("plain", side_inputs=["local.plain"])
    same = app.table("same", value=COLUMNS, side_inputs=["local.same"])
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: rows.join_table(written, columns=["model"]), "is for a table that is filled from outside"),
        (lambda: rows.join_table(plain, columns=["model"]), "the values of table `plain` are no rows of a schema"),
        (lambda: rows.join_table(same, columns=["m"]), "table `same` has no column `m`; it has key, n, x, s"),
        (lambda: rows.join_table(same, columns=["n"]), "the messages and table `same` both have a column `n`"),
        (lambda: rows.join_table(same, columns="n"), r"columns is a list of names, as \['n'\]"),
        (lambda: rows.join_table(same, max, columns=["n"]), "with columns= there is no function"),
        (lambda: rows.join_table(same), "join_table.. takes a function of two values, not None"),
    ]
    for call, text in refused:
        with pytest.raises(ps.ConfigError, match=text):
            call()


@pytest.mark.parametrize("column", ["at", "ms"])
def test_an_expression_gives_the_event_times(column: str) -> None:
    schema = pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC"), "ms": pa.int64()})
    app = ps.StreamApplication("times")
    rows = app.input("local.rows", value=ps.Columns(schema), timestamp=ps.col(column))
    rows.send_to(app.output("local.out"))
    row = {"key": "a", "at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "ms": 5000}
    with running(app) as runner:
        runner.input("local.rows", [row], timestamp=7).run()
        assert [message.timestamp for message in runner.output("local.out")] == [5000]
        runner.commit()


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (ps.Windows.tumbling(50), "needs aggregates"),
        (ps.Windows.count(2, aggregates={"count": ps.Count()}), "must not count messages"),
        (ps.Windows.tumbling(50, aggregates={"end_ms": ps.Count()}), "`end_ms` is a column of each row"),
    ],
)
def test_panes_that_are_no_rows(window: Any, text: str) -> None:
    rows = ps.StreamApplication("windows").input("local.rows", value=COLUMNS)
    with pytest.raises(ps.ConfigError, match=text):
        rows.window(window, rows=True)
