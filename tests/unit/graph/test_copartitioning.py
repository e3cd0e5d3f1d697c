"""Keys: streams that meet in a table bring equal ones to one task, and what works by key needs one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.kinds import PartitionRange
from penstock.graph.keys import check_copartitioning, check_keys
from penstock.testing import TestRunner

A, B = SystemStream("m", "a"), SystemStream("m", "b")


def application(*, shuffled: str = "", key: ps.Serde[object] | None = None) -> ps.StreamApplication:
    """`m.a` is joined with a table of `m.b`; the inputs named in `shuffled` pass a partition_by."""
    app = ps.StreamApplication("a")
    table = app.table("t", key=key)
    streams = {}
    for name in "ab":
        streams[name] = app.input(f"m.{name}", key=key)
        if name in shuffled:
            streams[name] = streams[name].partition_by(str, key=key, id=f"by-{name}")
    streams["b"].send_to(table, id="writer")
    streams["a"].join_table(table, lambda value, _: value, id="reader")
    return app


def check(app: ps.StreamApplication, a: int, b: int, tasks: int, *broadcast: PartitionRange) -> None:
    partitions = [SystemStreamPartition("m", s.stream, p) for s, n in ((A, a), (B, b)) for p in range(n)]
    check_copartitioning(app.graph(), partitions, tasks, broadcast)


@pytest.mark.parametrize(
    ("shuffled", "a", "b", "tasks"),
    [("", 3, 3, 3), ("", 3, 3, 8), ("ab", 2, 5, 5), ("a", 2, 5, 5), ("b", 5, 2, 5), ("b", 5, 5, 5)],
)
def test_alike(shuffled: str, a: int, b: int, tasks: int) -> None:
    check(application(shuffled=shuffled), a, b, tasks)


@pytest.mark.parametrize(
    ("shuffled", "a", "b", "tasks", "said"),
    [
        ("", 2, 3, 3, r"`writer` writes input `m.b` \(3 partitions\); `reader` joins input `m.a` \(2 partitions\)"),
        ("a", 3, 3, 4, r"`writer` writes input `m.b` \(3 partitions\); `reader` joins the keys of `by-a` \(4 tasks\)"),
    ],
)
def test_not_alike(shuffled: str, a: int, b: int, tasks: int, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=rf"^table `t`: .*{said}.* \.partition_by\(\.\.\.\) with the same keys"):
        check(application(shuffled=shuffled), a, b, tasks)


def test_streams_that_are_merged() -> None:
    app = ps.StreamApplication("a")
    table = app.table("t")
    merged = app.input("m.a").merge(app.input("m.b"))
    merged.send_to(table)
    check(app, 4, 4, 4)
    with pytest.raises(ps.ConfigError, match=r"writes input `m.a` \(2 partitions\) and input `m.b` \(4 partitions\)"):
        check(app, 2, 4, 4)


def test_every_task_may_have_the_whole_table() -> None:
    check(application(), 4, 2, 4, PartitionRange(B, 0, 1))


def test_a_message_that_every_task_gets_finds_a_part_of_the_table() -> None:
    with pytest.raises(ps.ConfigError, match=r"`reader` joins the broadcast input `m.a` \(all messages in every task"):
        check(application(), 2, 4, 4, PartitionRange(A, 0, 1))


def test_an_input_of_which_some_partitions_are_broadcast() -> None:
    with pytest.raises(ps.ConfigError, match=r"`writer` writes input `m.b` \(2 partitions, 1 of them in every"):
        check(application(), 4, 2, 4, PartitionRange(B, 0, 0))


def test_another_serde_of_the_keys_is_refused_where_it_is_declared() -> None:
    app = ps.StreamApplication("a")
    numbers = app.input("m.a", key=ps.Long())
    table = app.table("t")
    with pytest.raises(ps.ConfigError, match=r"send_to\(\): the keys of `input-1` are ps.Long\(\), those of table `t`"):
        numbers.send_to(table)
    with pytest.raises(ps.ConfigError, match=r"join_table\(\): the keys of .* ps.String\(\). Equal keys"):
        numbers.join_table(table, lambda value, _: value)


def test_columns_of_a_table_that_is_filled_from_outside() -> None:
    """Its keys are spread over the tasks, and an input with fewer partitions would find none of some."""
    app, rows = ps.StreamApplication("a"), ps.Columns(pa.schema([("n", pa.int64())]))
    users = app.table("users", value=ps.Columns(pa.schema([("name", pa.string())])), side_inputs=["m.users"])
    app.input("m.a", value=rows).join_table(users, columns=["name"], id="reader")
    app.input("m.b").map(lambda value: value)
    check(app, 3, 3, 3)
    with pytest.raises(ps.ConfigError, match=r"`reader` joins input `m.a` \(2 partitions\); the side input `m.users`"):
        check(app, 2, 3, 3)


# Joins of streams.


def joined(*, shuffled: str = "") -> ps.StreamApplication:
    """`m.a` is joined with `m.b`."""
    app = ps.StreamApplication("a")
    streams = []
    for name in "ab":
        stream = app.input(f"m.{name}").filter(bool)
        streams.append(stream.partition_by(str, id=f"by-{name}").map(str) if name in shuffled else stream)
    streams[0].join(streams[1], lambda left, right: [left, right], within_ms=5, id="pairs")
    return app


@pytest.mark.parametrize(
    ("shuffled", "a", "b", "tasks"), [("", 3, 3, 3), ("", 3, 3, 8), ("ab", 2, 5, 5), ("a", 2, 5, 5), ("b", 5, 2, 5)]
)
def test_sides_of_a_join_that_are_alike(shuffled: str, a: int, b: int, tasks: int) -> None:
    check(joined(shuffled=shuffled), a, b, tasks)


@pytest.mark.parametrize(
    ("shuffled", "a", "b", "tasks", "said"),
    [
        (
            "",
            2,
            3,
            3,
            r"its left side has input `m.a` \(2 partitions\); its right side has input `m.b` \(3 partitions\)",
        ),
        ("a", 3, 3, 4, r"its left side has the keys of `by-a` \(4 tasks\); its right side has input `m.b`"),
    ],
)
def test_sides_of_a_join_that_are_not_alike(shuffled: str, a: int, b: int, tasks: int, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=rf"^join `pairs`: .*{said}.* \.partition_by\(\.\.\.\) with the same keys"):
        check(joined(shuffled=shuffled), a, b, tasks)


def test_a_side_that_every_task_gets_would_be_joined_several_times() -> None:
    with pytest.raises(
        ps.ConfigError, match=r"its right side has the broadcast input `m.b` \(all messages in every task"
    ):
        check(joined(), 2, 2, 2, PartitionRange(B, 0, 1))
    with pytest.raises(
        ps.ConfigError, match=r"its right side has input `m.b` \(2 partitions, 1 of them in every task\)"
    ):
        check(joined(), 2, 2, 2, PartitionRange(B, 0, 0))


def test_keys_whose_bytes_became_others_behind_the_exchange() -> None:
    """Their task was found with the bytes of one serde, and the join would look for those of another."""
    app = ps.StreamApplication("a")
    left = app.input("m.a").partition_by(str).process(Numbers, key=ps.Long())
    right = app.input("m.b").partition_by(int, key=ps.Long())
    left.join(right, lambda left, right: [left, right], within_ms=5)
    with pytest.raises(ps.ConfigError, match=r"^join `join-1`: its left side has `long` and `string` keys"):
        check(app, 2, 2, 2)


class Numbers(ps.StreamTask):
    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any
    ) -> None: ...


def test_keys_of_two_serdes_are_refused_where_the_join_is_made() -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(
        ps.ConfigError, match="`input-1` are written by the serde `string` and those of `input-2` by `long`"
    ):
        app.input("m.a").join(app.input("m.b", key=ps.Long()), lambda left, right: None, within_ms=5)


def test_a_job_is_refused_when_it_starts() -> None:
    with pytest.raises(ps.ConfigError, match="every task"):
        TestRunner(joined(), broadcast_inputs="m.b#[0-1]").run()


# Tables that something else fills.


def beside(table: dict[str, Any], key: ps.Serde[Any] | None = None) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    planes = app.table("planes", key=key, **table)
    app.input("m.a", key=key).join_table(planes, lambda value, _: value, id="reader")
    app.input("m.b").send_to(app.output("m.out"))
    return app


PUSHED = ps.PushedTable("/planes", key="tail")


@pytest.mark.parametrize("table", [{"side_inputs": ["m.p"]}, {"pushed": PUSHED}])
def test_a_side_table_has_a_part_for_each_task(table: dict[str, Any]) -> None:
    check(beside(table), 3, 2, 3)
    with pytest.raises(ps.ConfigError, match=r"`reader` joins input `m.a` \(2 partitions\); the .* its (3 p|keys \(3)"):
        check(beside(table), 2, 3, 3)


@pytest.mark.parametrize(
    "table", [{"side_inputs": ["m.p"], "broadcast": True}, {"pushed": replace(PUSHED, broadcast=True)}]
)
def test_a_side_table_that_every_task_has(table: dict[str, Any]) -> None:
    check(beside(table), 2, 3, 3)
    check(beside(table), 3, 3, 3, PartitionRange(A, 0, 2))


def test_keys_of_a_side_input_have_the_serde_of_the_table_or_a_processor() -> None:
    longs = ps.SideInput("m.p", key=ps.Long())
    with pytest.raises(ps.ConfigError, match=r"the side input `m.p` brings `long` keys. Equal keys have equal bytes"):
        check(beside({"side_inputs": [longs]}), 3, 3, 3)
    check(beside({"side_inputs": [longs], "processor": lambda message, store: []}), 3, 3, 3)
    check(beside({"side_inputs": [longs]}, ps.Long()), 3, 3, 3)


KEYLESS = {SystemStream("shop", "views")}
Stream = ps.MessageStream[Any]


class Emits(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key="k", value=envelope.value)


def window(stream: Stream, *, keyed: bool = True) -> Stream:
    return stream.window(ps.Windows.tumbling("1h", aggregates={"n": ps.Count()}, keyed=keyed), id="hours")


def app_of(build: Callable[[Stream], Stream], stream: str = "shop.views") -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.store("s")
    views = app.input(stream, timestamp=lambda value: 0)
    build(views.map(lambda value: value, id="plain")).send_to(app.output("m.out"))
    return app


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (window, "hours"),
        (lambda stream: stream.aggregate({"n": ps.Count()}, id="totals"), "totals"),
        (lambda stream: stream.join(stream, lambda a, b: a, within_ms=5, id="pairs"), "pairs"),
    ],
)
def test_what_works_by_key_needs_one(build: Callable[[Stream], Stream], operator: str) -> None:
    with pytest.raises(ps.ConfigError, match=rf"operator `{operator}` works by key.*`shop\.views` have none"):
        check_keys(app_of(build).graph(), KEYLESS)
    check_keys(app_of(build, "m.in").graph(), KEYLESS)
    by_user = app_of(lambda stream: build(stream.partition_by(lambda value: value["user"], id="by-user")))
    check_keys(by_user.graph(), KEYLESS)


def test_columns_of_a_table_are_found_by_key() -> None:
    rows = ps.Columns(pa.schema([("n", pa.int64())]))
    app = ps.StreamApplication("a")
    users = app.table("users", value=ps.Columns(pa.schema([("name", pa.string())])), side_inputs=["m.users"])
    app.input("shop.views", value=rows).join_table(users, columns=["name"], id="named")
    with pytest.raises(ps.ConfigError, match=r"operator `named` works by key"):
        check_keys(app.graph(), KEYLESS)


def test_what_needs_no_key() -> None:
    check_keys(app_of(lambda stream: window(stream, keyed=False)).graph(), KEYLESS)
    check_keys(app_of(lambda stream: stream.process(Emits, stores=["s"])).graph(), KEYLESS)
    check_keys(app_of(lambda stream: window(stream.process(Emits, stores=["s"]))).graph(), KEYLESS)
