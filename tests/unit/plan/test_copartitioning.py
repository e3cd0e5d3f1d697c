"""Streams that meet in a table must bring equal keys to one task."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.broadcast import PartitionRange
from penstock.plan.copartitioning import check_copartitioning

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
    with pytest.raises(ps.ConfigError, match=r"`writer` writes input `m.b` \(2 partitions\)"):
        check(application(), 4, 2, 4, PartitionRange(B, 0, 0))


def test_another_serde_of_the_keys_is_refused_where_it_is_declared() -> None:
    app = ps.StreamApplication("a")
    numbers = app.input("m.a", key=ps.Long())
    table = app.table("t")
    with pytest.raises(ps.ConfigError, match=r"send_to\(\): the keys of `input-1` are ps.Long\(\), those of table `t`"):
        numbers.send_to(table)
    with pytest.raises(ps.ConfigError, match=r"join_table\(\): the keys of .* ps.String\(\). Equal keys"):
        numbers.join_table(table, lambda value, _: value)
