"""A checkpoint remembers the layouts of stores and rows; the refusal when the application declares them differently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, DateType, IntegerType, LongType, MapType, StringType, StructType

import penstock as ps
from penstock.checkpoint.record import Claim
from penstock.errors import IncompatibleError
from penstock.graph.stores import STORE_LAYOUTS, OperatorKind, TtlFrom
from penstock.spark.processor.declared import DeclaredVariables, TimeMode, Variable
from penstock.spark.processor.task import ProcessorSpec
from penstock.start.layout import check_layout, store_layout
from penstock.start.plan import Reset
from tests.support.oracles.processors import application
from tests.support.stores.checkpoints import checkpoint


class Count(ps.StreamTask):
    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any
    ) -> None: ...


def layout(key: ps.Serde[int], value: ps.Serde[int]) -> dict[str, str]:
    app = ps.StreamApplication("a")
    app.store("s", key=key, value=value)
    app.input("local.in").process(Count, stores=["s"])
    return store_layout(app.graph())


def check(before: str, key: ps.Serde[int], value: ps.Serde[int]) -> None:
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores={"s": before})
    check_layout(record, layout(key, value), 0)


@pytest.mark.parametrize(
    ("old", "now", "samza"),
    [
        ("integer", ps.Integer(), ps.SamzaInteger()),
        ("long", ps.Long(), ps.SamzaLong()),
        ("double", ps.Double(), ps.SamzaDouble()),
    ],
    ids=lambda p: getattr(p, "name", p),
)
def test_keys_in_the_old_form_are_refused_with_the_way(old: str, now: ps.Serde[int], samza: ps.Serde[int]) -> None:
    """Values have the form they always had; keys of numbers used to be written as Samza does."""
    check(f"process-1 {old} {old}", samza, now)
    check(f"process-1 ordered-{old} {old}", now, now)
    advice = rf'no ranges: app\.store\("s", key=ps\.{type(samza).__name__}\(\)\) reads them'
    with pytest.raises(ps.IncompatibleError, match=advice):
        check(f"process-1 {old} {old}", now, now)
    with pytest.raises(ps.IncompatibleError, match="was written as") as caught:
        check(f"process-1 {old} json", now, now)
    assert "Samza" not in str(caught.value)


def test_an_operator_put_before_a_stateful_one_without_an_id() -> None:
    """The advice was to begin without state; the id that the operator had is what is needed."""
    app = ps.StreamApplication("a")
    app.store("s")
    stream = app.input("local.in").process(Count)
    stream.process(Count, stores=["s"])
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores={"s": "process-1 string json"})
    with pytest.raises(ps.IncompatibleError) as caught:
        check_layout(record, store_layout(app.graph()), 0)
    assert 'give them their ids back: .process(..., id="process-1") to the one that is `process-2` now' in str(
        caught.value
    )

    app = ps.StreamApplication("a")
    app.store("s")
    stream = app.input("local.in").process(Count)
    with pytest.raises(ps.ConfigError, match=r"`process-1` is used twice.*give the other one an id as well"):
        stream.process(Count, stores=["s"], id="process-1")
    app = ps.StreamApplication("a")
    app.store("s")
    app.input("local.in").process(Count, id="before").process(Count, stores=["s"], id="process-1")
    check_layout(record, store_layout(app.graph()), 0)


def test_another_operator_and_another_serde_get_no_such_advice() -> None:
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores={"s": "process-7 bytes json"})
    with pytest.raises(ps.IncompatibleError, match="was written as") as caught:
        check_layout(record, layout(ps.Long(), ps.Long()), 0)
    assert "ids back" not in str(caught.value)


def windows(window: ps.Window, op_id: str = "w", key: ps.Serde[object] | None = None) -> dict[str, str]:
    app = ps.StreamApplication("a")
    app.input("local.in", key=key).window(window, id=op_id)
    return store_layout(app.graph())


SUMS = ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n))


@pytest.mark.parametrize(
    "now",
    [
        windows(ps.Windows.tumbling(20, fold=(0, lambda total, n: total + n))),
        windows(ps.Windows.session(10, fold=(0, lambda total, n: total + n))),
        windows(ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n), value=ps.Long())),
        windows(ps.Windows.tumbling(10, aggregates={"n": ps.Count()})),
        windows(ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n), early=ps.Triggers.count(2))),
        windows(ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n), time="processing")),
        windows(SUMS, key=ps.Json()),
        windows(SUMS, "other"),
        {},
    ],
)
def test_a_window_that_changed_is_refused_unless_all_of_its_windows_have_fired(now: dict[str, str]) -> None:
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores=windows(SUMS))
    with pytest.raises(ps.IncompatibleError, match=r"operator `w` is in checkpoint .*`penstock drain JOB --wait`"):
        check_layout(record, now, 0)
    check_layout(replace(record, ended="end-of-stream"), now, 0)
    check_layout(record, windows(ps.Windows.tumbling(10, fold=(5, lambda total, n: total * n))), 0)


def test_the_refusal_says_what_differs() -> None:
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores=windows(SUMS))
    words = r"`size_ms=10` became `size_ms=20` and `every_ms=10` became `every_ms=20`\. The content that waits in it"
    with pytest.raises(ps.IncompatibleError, match=words):
        check_layout(record, windows(ps.Windows.tumbling(20, fold=(0, lambda total, n: total + n))), 0)
    with pytest.raises(ps.IncompatibleError, match=r"now\. The content that waits in it"):
        check_layout(record, windows(ps.Windows.session(10, fold=(0, lambda total, n: total + n))), 0)


def test_no_store_has_the_name_of_an_operators() -> None:
    with pytest.raises(ps.ConfigError, match="for the stores of operators"):
        ps.StreamApplication("a").store("w.window")


def with_ttl(ttl_ms: int | None, since: TtlFrom = "write", value: ps.Serde[Any] | None = None) -> dict[str, str]:
    app = ps.StreamApplication("a")
    app.store("s", value=value, ttl_ms=ttl_ms, ttl_from=since)
    app.input("local.in").process(Count, stores=["s"])
    return store_layout(app.graph())


def test_a_time_to_live_can_be_added_and_changed_but_not_removed() -> None:
    written = checkpoint(Claim(1, "run", "writer"), 1)
    check_layout(replace(written, stores=with_ttl(None)), with_ttl(10), 0)
    for now in (with_ttl(20), with_ttl(10, "access")):
        check_layout(replace(written, stores=with_ttl(10)), now, 0)
    advice = (
        r'have a time to live.*declares none.*app\.store\("s", \.\.\., ttl_ms=\.\.\.\).*another one.*from a checkpoint'
    )
    with pytest.raises(ps.IncompatibleError, match=advice):
        check_layout(replace(written, stores=with_ttl(10)), with_ttl(None), 0)
    for before, after in ((None, 10), (10, None), (10, 10)):
        with pytest.raises(ps.IncompatibleError, match="was written as"):
            check_layout(replace(written, stores=with_ttl(before)), with_ttl(after, value=ps.Long()), 0)


@pytest.mark.parametrize(
    ("ttl_ms", "since", "message"),
    [
        (0, "write", "ttl_ms is a duration "),
        (-5, "write", "not -5"),
        (1.5, "write", r"not 1\.5"),
        (True, "write", "not True"),
        (10**15 + 1, "write", "at most 1,000,000,000,000,000 ms"),
        (10, "read", 'ttl_from is "write" or "access", not \'read\''),
        (None, "access", 'ttl_from="access" needs ttl_ms'),
    ],
)
def test_what_is_no_time_to_live_is_refused(ttl_ms: Any, since: Any, message: str) -> None:
    with pytest.raises(ps.ConfigError, match=f"store `s`: .*{message}"):
        ps.StreamApplication("a").store("s", ttl_ms=ttl_ms, ttl_from=since)


def table_layout(join_id: str | None, history_ms: int | None = None) -> dict[str, str]:
    app = ps.StreamApplication("a")
    table = app.table("t", history_ms=history_ms)
    stream = app.input("local.in")
    stream.send_to(table)
    if join_id is not None:
        stream.join_table(table, lambda value, _: value, as_of=history_ms is not None, id=join_id)
    return store_layout(app.graph())


def test_any_operator_may_use_a_table() -> None:
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores=table_layout(None))
    check_layout(record, table_layout("first"), 0)
    check_layout(record, table_layout("second"), 0)
    with pytest.raises(ps.IncompatibleError, match=r"written as `\(table\) string json` .* version-key\(string"):
        check_layout(record, table_layout("first", 5), 0)


def test_how_long_a_table_keeps_its_history_may_change() -> None:
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores=table_layout("join", 5))
    check_layout(record, table_layout("join", 7), 0)
    with pytest.raises(ps.IncompatibleError, match="the join of operator `join` is in checkpoint"):
        check_layout(record, table_layout("other", 7), 0)


class Timed(ps.StreamTask):
    def on_timer(self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: Any) -> None: ...


def timers_layout(timers: ps.Serde[Any] | None) -> dict[str, str]:
    app = ps.TaskApplication("timers", Timed, timers=timers)
    app.store("counts")
    app.input("local.events")
    return store_layout(app.graph())


def test_timers_are_refused_another_serde_and_none() -> None:
    """They may be added at any time."""
    record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores=timers_layout(ps.String()))
    check_layout(record, timers_layout(ps.String()), 0)
    check_layout(replace(record, stores=timers_layout(None)), timers_layout(ps.String()), 0)
    with pytest.raises(
        ps.IncompatibleError, match=r"`timers\(string\)` and are `timers\(ordered-long\)` now\. The content"
    ):
        check_layout(record, timers_layout(ps.Long()), 0)
    with pytest.raises(
        ps.IncompatibleError, match=r"the timers of operator `task` are in .* are no longer in the appl"
    ):
        check_layout(record, timers_layout(None), 0)
    check_layout(replace(record, ended="end-of-stream"), timers_layout(ps.Long()), 0)


def of_all_kinds() -> ps.StreamApplication:
    """An application with an operator of each kind that has a store."""

    class Remind(Count):
        def on_timer(
            self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
        ) -> None: ...

    app = ps.StreamApplication("a")
    stream, table = app.input("local.in"), app.table("t", history_ms=5)
    stream.window(SUMS, id="window")
    stream.join(stream, lambda one, two: one, within_ms=5, id="join")
    stream.send_to(table, id="versions")
    stream.join_table(table, lambda one, two: one, as_of=True, id="temporal-join")
    stream.process(Remind, timers=ps.String(), id="timers")
    stream.aggregate({"n": ps.Count()}, id="aggregate")
    stream.process(Count, order="event-time", id="order")
    rows = app.input("local.rows", value=ps.Columns(pa.schema({"n": pa.int64()})))
    rows.process_batch(Ignored, order="event-time", id="column-order")
    return app


class Ignored(ps.BatchProcessor):
    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None: ...


@pytest.mark.parametrize("kind", STORE_LAYOUTS)
def test_stores_of_another_layout_are_refused(kind: OperatorKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two versions is the newer one. What is closed has nothing in such stores but totals."""
    first = store_layout(of_all_kinds().graph())
    monkeypatch.setitem(STORE_LAYOUTS, kind, 2)
    second = store_layout(of_all_kinds().graph())
    assert [name.rpartition(".")[0] for name in first if first[name] != second[name]] == [kind]
    for before, now, numbers in ((first, second, (1, 2)), (second, first, (2, 1))):
        record = replace(checkpoint(Claim(1, "run", "writer"), 1), stores=before)
        said = rf"of operator `{kind}` (is|are) in checkpoint .* in layout {numbers[0]} of .* reads layout {numbers[1]}"
        if kind == "aggregate":
            said += rf".*with that version\. Or drop the totals.*\[\"{kind}\"\]"
        else:
            said += (
                rf": .*with that version, and drain .* alone with `penstock drain JOB --operator {kind} --wait`, or"
                rf" all .*`penstock drain JOB --wait`.*\[\"{kind}\"\]"
            )
        with pytest.raises(ps.IncompatibleError, match=said):
            check_layout(record, now, 0)
        drained = replace(record, ended="drained")
        if kind == "aggregate":
            with pytest.raises(ps.IncompatibleError, match=said):
                check_layout(drained, now, 0)
        else:
            check_layout(drained, now, 0)
        check_layout(record, now, 0, Reset((kind,)).stores)
        check_layout(record, before, 0)


TYPES: dict[str, DataType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "date": DateType(),
    "array<int>": ArrayType(IntegerType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema(ddl: str) -> StructType:
    found = StructType()
    for column in ddl.split(", "):
        name, _, kind = column.rpartition(" ")
        found = found.add(name, TYPES[kind])
    return found


def row_layout(*variables: Variable, key: str = "user string", mode: TimeMode = "none") -> dict[str, str]:
    spec = ProcessorSpec(
        operator="processor",
        processor=b"",
        declared=DeclaredVariables(variables),
        key=schema(key),
        input=pa.schema([]),
        output=schema("n int"),
        mode=mode,
        event_time=None,
    )
    return store_layout(application(spec).graph())


def check_rows(before: dict[str, str], now: dict[str, str]) -> None:
    check_layout(replace(checkpoint(Claim(1, "run", "writer"), 1), stores=before), now, 0)


VISITS = Variable("value", "visits", schema("n bigint, of array<int>"))
BEFORE = row_layout(VISITS)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (Variable("value", "visits", schema("n int, of array<int>")), "column `n` was bigint and is int now"),
        (Variable("value", "visits", schema("n bigint")), "column `of` of type array<int> is gone"),
        (
            Variable("value", "visits", schema("n bigint, new int, of array<int>")),
            "its columns were n and of and are n, new and of now; new ones go to the end",
        ),
        (Variable("list", "visits", VISITS.schema), "it was a value and is a list now"),
    ],
)
def test_a_changed_state_variable_is_named_with_its_column_and_types(now: Variable, said: str) -> None:
    with pytest.raises(IncompatibleError) as raised:
        check_rows(BEFORE, row_layout(now))
    assert str(raised.value).startswith(f"the state variable `visits` has changed: {said}. Set it back, or begin")


def test_columns_may_be_added_at_the_end_and_a_time_to_live() -> None:
    check_rows(BEFORE, row_layout(Variable("value", "visits", schema("n bigint, of array<int>, new map<string,int>"))))
    check_rows(BEFORE, row_layout(replace(VISITS, ttl_ms=1000)))


def test_a_time_to_live_cannot_be_removed() -> None:
    with pytest.raises(IncompatibleError, match="`visits` has changed: its values had a time to live"):
        check_rows(row_layout(replace(VISITS, ttl_ms=1000)), BEFORE)


def test_a_variable_that_is_no_longer_declared() -> None:
    with pytest.raises(IncompatibleError, match="`visits` is in the checkpoint, and the processor does not declare it"):
        check_rows(BEFORE, row_layout())


def test_a_changed_key_of_a_map() -> None:
    old, new = (Variable("map", "m", schema("n int"), schema(key)) for key in ("a string", "a string, b date"))
    with pytest.raises(IncompatibleError, match=r"its key was \(a string\) and is \(a string, b date\) now"):
        check_rows(row_layout(old), row_layout(new))


def test_a_changed_grouping_key() -> None:
    with pytest.raises(IncompatibleError, match=r"the grouping key was \(user string\) and is \(id bigint\) now"):
        check_rows(BEFORE, row_layout(VISITS, key="id bigint"))


def test_a_changed_time_mode() -> None:
    timed = row_layout(VISITS, mode="processingtime")
    with pytest.raises(IncompatibleError, match="the time mode was processingtime and is eventtime now"):
        check_rows(timed, row_layout(VISITS, mode="eventtime"))
    with pytest.raises(IncompatibleError, match="timers of the processor have a time mode in the checkpoint, and the"):
        check_rows(timed, BEFORE)
    check_rows(BEFORE, timed)
