"""Specs answer whoever plans, also of the columns that an exchange carries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.windows import WindowShape
from penstock.graph import specs
from penstock.graph.keys import check_copartitioning, check_keys, found_by_hash
from penstock.graph.specs import OperatorSpec, Use
from penstock.graph.stores import StoreSpec
from penstock.graph.topology import plan_topology
from penstock.repartition.placement import StayingPlacement, TaskCountChange, placements
from penstock.testing import TestRunner

PACKAGE = Path(ps.__file__).parent
ROWS = ps.Columns(pa.schema([("user", pa.string()), ("n", pa.int64()), ("text", pa.string())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSpec(OperatorSpec):
    """Reads a table by key, and two columns of its messages."""

    operator = "nowhere:Lookup"
    needs_task = True

    of: str

    @property
    def works_by_key(self) -> bool:
        return True

    @property
    def without_keys(self) -> str:
        return "look elsewhere"

    @property
    def reads_table(self) -> str:
        return self.of

    def columns_read(self, passed_on: Use) -> Use:
        return frozenset(["user", "n"])


def lookup(stream: ps.MessageStream[Any], table: str) -> ps.MessageStream[Any]:
    """A stand-in for a method of MessageStream."""
    return stream._next("lookup", None, lambda i: LookupSpec(id=i, of=table, stores=(table,), **stream._same()))


def application(*, spread: bool = False) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    table = app.table("t", value=ROWS)
    app.input("m.b", value=ROWS).send_to(table)
    stream = app.input("m.a", value=ROWS)
    lookup(stream.partition_by(ps.col("user")) if spread else stream, "t")
    return app


def test_it_needs_keys() -> None:
    said = r"`lookup-1` works by key, and the messages of `m\.a` have none: .* before it, or look elsewhere"
    with pytest.raises(ps.ConfigError, match=said):
        check_keys(application().graph(), {SystemStream("m", "a")})
    check_keys(application(spread=True).graph(), {SystemStream("m", "a")})


def test_its_streams_meet_in_the_table() -> None:
    partitions = [SystemStreamPartition("m", name, n) for name, count in (("a", 2), ("b", 3)) for n in range(count)]
    with pytest.raises(ps.ConfigError, match=r"table `t`: .*`lookup-1` joins input `m\.a` \(2 partitions\)"):
        check_copartitioning(application().graph(), partitions, 3)
    assert found_by_hash(application().graph()) == frozenset()
    assert found_by_hash(application(spread=True).graph()) == {"t"}


def test_it_gets_the_columns_that_it_reads() -> None:
    channels = plan_topology(application(spread=True).graph()).channels
    (channel,) = (each for each in channels if each.targets == ("lookup-1",))
    assert channel.columns is not None
    assert channel.columns.schema.names == ["user", "n"]


def test_it_does_not_say_where_the_entries_of_the_table_go() -> None:
    change = TaskCountChange(2, 4, {"m.a": (2, 2), "m.b": (2, 2)})
    assert placements(application(spread=True).graph(), change) == {"t": StayingPlacement()}


def kinds(kind: type[Any]) -> Iterator[str]:
    yield kind.__name__
    for each in kind.__subclasses__():
        yield from kinds(each)


def test_nobody_asks_for_a_kind() -> None:
    """A new kind would have to be entered wherever one is asked for."""
    known = {*kinds(OperatorSpec), *kinds(WindowShape), *kinds(StoreSpec)}
    named = re.compile(rf"\b({'|'.join(known)})\b")
    asked = [
        f"{path.relative_to(PACKAGE)}:{where.lineno}"
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(Path(specs.__file__).parent) and named.search(text := path.read_text())
        for where in asked_for(ast.parse(text))
        if not known.isdisjoint(each.id for each in ast.walk(where) if isinstance(each, ast.Name))
    ]
    assert asked == []


def asked_for(tree: ast.AST) -> Iterator[ast.expr]:
    """The classes in calls of isinstance, and in patterns of a match."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, of]) | ast.MatchClass(cls=of):
                yield of


FLIGHT = ps.Columns(
    pa.schema(
        {"tail": pa.string(), "carrier": pa.string(), "miles": pa.int64(), "delay": pa.float64(), "ok": pa.bool_()}
    )
)


class Everything(ps.BatchProcessor):
    """Gets whole rows."""

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        collector.emit(batch.keys, batch.values)


def carried(app: ps.StreamApplication) -> list[list[str] | None]:
    """By channel, the columns that it carries; None for one that carries bytes."""
    channels = plan_topology(app.graph()).channels
    return [None if channel.columns is None else channel.columns.schema.names for channel in channels]


def by_carrier() -> tuple[ps.StreamApplication, ps.MessageStream[Any]]:
    app = ps.StreamApplication("a")
    return app, app.input("m.in", value=FLIGHT).partition_by(ps.col("carrier"))


def test_an_aggregate_gets_the_columns_of_its_expressions() -> None:
    app, stream = by_carrier()
    stream.aggregate({"n": ps.Count(), "late": ps.Sum(ps.col("miles") * 2), "worst": ps.Max(ps.col("delay"))})
    assert carried(app) == [["miles", "delay"]]


def test_a_count_of_messages_gets_the_smallest_column() -> None:
    app, stream = by_carrier()
    stream.aggregate({"n": ps.Count()})
    assert carried(app) == [["ok"]]


def test_filters_and_keys_on_the_way_add_their_columns_and_select_ends_it() -> None:
    app, stream = by_carrier()
    kept = stream.filter(ps.col("ok")).partition_by(ps.col("tail"))
    kept.aggregate({"miles": ps.Sum(ps.col("miles"))})
    assert carried(app) == [["tail", "miles", "ok"], ["miles"]]
    app, stream = by_carrier()
    stream.select("tail", km=ps.col("miles") * 1.6).send_to(app.output("m.out"))
    assert carried(app)[0] == ["tail", "miles"]


def test_windows_get_the_columns_of_their_aggregates_unless_late_messages_are_sent_on() -> None:
    for late_to in (False, True):
        app, stream = by_carrier()
        late: dict[str, Any] = {"late_to": app.output("m.late", value=FLIGHT)} if late_to else {}
        stream.window(ps.Windows.tumbling(60_000, aggregates={"n": ps.Mean(ps.col("delay"))}, **late))
        assert carried(app)[0] == (FLIGHT.schema.names if late_to else ["delay"])


@pytest.mark.parametrize("reader", ["map", "process_batch", "send_to", "aggregate of a function", "through"])
def test_whoever_gets_whole_rows_gets_all_columns_beside_an_aggregate(reader: str) -> None:
    app, stream = by_carrier()
    stream.aggregate({"n": ps.Count()}, id="counts")
    if reader == "map":
        stream.map(len)
    elif reader == "process_batch":
        stream.process_batch(Everything, schema=FLIGHT.schema)
    elif reader == "send_to":
        stream.send_to(app.output("m.out", value=FLIGHT))
    elif reader == "through":
        stream.partition_by(ps.col("tail"), through="m.between")
    else:
        stream.aggregate({"n": ps.Sum(lambda row: row["miles"])}, id="sums")
    assert carried(app)[0] == FLIGHT.schema.names


def test_messages_without_a_value_stay_without_one() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in", value=FLIGHT).partition_by(lambda row: "none" if row is None else row["carrier"])
    totals = stream.aggregate({"n": ps.Count(), "miles": ps.Sum(ps.col("miles"))}, id="totals")
    totals.send_to(app.output("m.out"))
    assert carried(app)[0] == ["miles"]
    rows = [("a", {"carrier": "UA", "miles": 3}), ("a", None), ("a", {"carrier": "none"})]
    found = TestRunner(app).input("m.in", rows).run().output("m.out")
    assert {message.key: message.value for message in found} == {
        "UA": {"n": 1, "miles": 3},
        "none": {"n": 1, "miles": 0},
    }
