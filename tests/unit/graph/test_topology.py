"""Cutting graphs into stages and channels."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.graph.topology import DEAD_LETTER_CHANNEL, Routing, Topology, plan_topology


class Nothing(ps.StreamTask):
    """Does nothing."""

    def process(self, *_: Any) -> None: ...


def start() -> tuple[ps.StreamApplication, ps.MessageStream[Any]]:
    app = ps.StreamApplication("a")
    return app, app.input("m.in")


def stages(topology: Topology) -> list[list[str]]:
    return [[op.id for op in stage.operators] for stage in topology.stages]


def channels(topology: Topology) -> set[tuple[str, int, tuple[str, ...], int, Routing, bool]]:
    return {(c.name, c.source_stage, c.targets, c.target_stage, c.routing, c.raw) for c in topology.channels}


def check(topology: Topology) -> None:
    """Assert the invariants of every topology."""
    assert [c.number for c in topology.channels] == list(range(len(topology.channels)))
    assert [s.number for s in topology.stages] == list(range(len(topology.stages)))
    assert all(c.source_stage < c.target_stage for c in topology.channels)
    for stage in topology.stages:
        assert stage.sources == tuple(sorted({c.source_stage for c in topology.channels_to(stage.number)}))
    everyone = [op.id for stage in topology.stages for op in stage.operators]
    assert sorted(everyone) == sorted(op.id for op in topology.graph.operators)
    order = {op.id: n for n, op in enumerate(topology.graph.operators)}
    assert all(
        [order[op.id] for op in stage.operators] == sorted(order[op.id] for op in stage.operators)
        for stage in topology.stages
    )


def test_stateless_operators_stay_in_stage_0() -> None:
    app, stream = start()
    stream.map(str).filter(bool).send_to(app.output("m.out"))
    topology = plan_topology(app.graph())
    check(topology)
    assert stages(topology) == [["input-1", "map-1", "filter-1", "send_to-1"]]
    assert channels(topology) == {("send_to-1", 0, (), 1, Routing.OUTPUT, False)}
    assert (topology.sink, topology.sink_sources, topology.container_stages) == (1, (0,), ())


def test_each_repartition_begins_a_stage() -> None:
    app, stream = start()
    app.store("s")
    stream.partition_by(str).process(Nothing, stores=["s"]).partition_by(str).map(str).send_to(app.output("m.out"))
    topology = plan_topology(app.graph())
    check(topology)
    assert stages(topology) == [["input-1", "partition_by-1"], ["process-1", "partition_by-2"], ["map-1", "send_to-1"]]
    assert [[s.name for s in stage.stores] for stage in topology.stages] == [[], ["s"], []]
    assert [stage.shuffled for stage in topology.stages] == [False, True, True]
    assert topology.expected_sources(1, 0, 2) == {(0, 0), (0, 1)}
    assert topology.expected_sources(3, 1, 2) == {(1, 0), (1, 1), (2, 0), (2, 1)}, "the task may send as well"
    assert [topology.targets_of(n) for n in range(3)] == [(1,), (2, 3), (3,)]


def test_a_process_directly_on_an_input() -> None:
    """It needs a container, so it is in stage 1; but no shuffle, and the bytes go there as they are."""
    app, stream = start()
    stream.process(Nothing)
    topology = plan_topology(app.graph())
    check(topology)
    assert stages(topology) == [["input-1"], ["process-1"]]
    assert channels(topology) == {("input-1", 0, ("process-1",), 1, Routing.TASK, True)}
    assert not topology.is_shuffled(1)
    assert topology.expected_sources(1, 3, 8) == {(0, 3)}
    assert topology.sink is None


def test_a_task_application() -> None:
    app = ps.TaskApplication("a", Nothing)
    app.input("m.a")
    app.input("m.b")
    app.store("s")
    app.output("m.out")
    topology = plan_topology(app.graph())
    check(topology)
    assert stages(topology) == [["input-1", "input-2"], ["task"]]
    assert channels(topology) == {
        ("input-1", 0, ("task",), 1, Routing.TASK, True),
        ("input-2", 0, ("task",), 1, Routing.TASK, True),
        ("task=>m.out", 1, (), 2, Routing.OUTPUT, False),
    }
    assert (topology.is_shuffled(1), topology.is_shuffled(2)) == (False, True)


def test_a_merge_runs_where_its_deepest_stream_is() -> None:
    app, stream = start()
    once = stream.partition_by(str)
    twice = once.map(str).partition_by(str)
    stream.merge(once, twice, id="all").map(str, id="after")
    topology = plan_topology(app.graph())
    check(topology)
    assert stages(topology) == [["input-1", "partition_by-1"], ["map-1", "partition_by-2"], ["all", "after"]]
    assert channels(topology) == {
        ("input-1", 0, ("all",), 2, Routing.TASK, True),
        ("partition_by-1", 0, ("map-1",), 1, Routing.KEY, False),
        ("partition_by-1", 0, ("all",), 2, Routing.KEY, False),
        ("partition_by-2", 1, ("all",), 2, Routing.KEY, False),
    }
    assert topology.stages[2].sources == (0, 1)
    assert topology.targets_of(0) == (1, 2)


def test_one_channel_serves_all_its_targets_of_a_stage() -> None:
    app, stream = start()
    keyed = stream.partition_by(str)
    keyed.map(str)
    keyed.filter(bool)
    topology = plan_topology(app.graph())
    assert channels(topology) == {("partition_by-1", 0, ("map-1", "filter-1"), 1, Routing.KEY, False)}


def test_a_partition_by_nobody_reads_makes_no_stage() -> None:
    app, stream = start()
    stream.partition_by(str)
    topology = plan_topology(app.graph())
    check(topology)
    assert stages(topology) == [["input-1", "partition_by-1"]]
    assert (topology.channels, topology.sink) == ((), None)


def test_a_store_shared_by_two_stages() -> None:
    app, stream = start()
    app.store("s")
    stream.process(Nothing, stores=["s"], id="first").partition_by(str).process(Nothing, stores=["s"], id="second")
    with pytest.raises(
        ps.ConfigError, match=r"store `s` .* different stages: `first` \(stage 1\), `second` \(stage 2\)"
    ):
        plan_topology(app.graph())


def test_a_store_shared_within_a_stage() -> None:
    app, stream = start()
    app.store("s")
    stream.partition_by(str).process(Nothing, stores=["s"]).process(Nothing, stores=["s"])
    stream.process(Nothing, stores=["s"])
    assert [s.name for s in plan_topology(app.graph()).stages[1].stores] == ["s"]


def test_operators_of_a_table_run_in_the_last_stage_of_them() -> None:
    """Messages of an earlier stage do not wait: they are sent on to the last one."""
    app, stream = start()
    table, other = app.table("t"), app.table("u")
    stream.send_to(table, id="writer")
    deep = stream.partition_by(str).process(Nothing).partition_by(str).process(Nothing, id="deep")
    deep.join_table(table, lambda value, _: value, id="reader").send_to(other, id="second")
    app.input("local.other").join_table(other, lambda value, _: value, id="third").partition_by(str).process(
        Nothing, id="last"
    )
    topology = plan_topology(app.graph())
    stages = {op.id: stage.number for stage in topology.stages for op in stage.operators}
    assert {each: stages[each] for each in ("writer", "deep", "reader", "second", "third", "last")} == {
        "writer": 2, "deep": 2, "reader": 2, "second": 2, "third": 2, "last": 3
    }  # fmt: skip


def test_a_table_in_two_stages() -> None:
    app, stream = start()
    table = app.table("t")
    stream.send_to(table, id="writer")
    joined = stream.join_table(table, lambda value, _: value, id="first")
    joined.partition_by(str).join_table(table, lambda value, _: value, id="second")
    with pytest.raises(
        ps.ConfigError, match=r"table `t` .* `first` \(stage 1\), `second` \(stage 2\).* a second table for `second`"
    ):
        plan_topology(app.graph())


def test_tables_that_wait_for_each_other() -> None:
    app, stream = start()
    one, two = app.table("one"), app.table("two")
    other = app.input("local.other")
    stream.join_table(one, lambda value, _: value).partition_by(str).send_to(two, id="a")
    other.join_table(two, lambda value, _: value).partition_by(str).send_to(one, id="b")
    with pytest.raises(ps.ConfigError, match=r"tables or stores `one` .* and `two` .* cannot each belong to one stage"):
        plan_topology(app.graph())


def test_a_table_nobody_uses() -> None:
    app, _ = start()
    app.table("t")
    with pytest.raises(ps.ConfigError, match=r"table `t` is declared but no operator uses it: write it with .send_to"):
        plan_topology(app.graph())


def test_a_store_nobody_uses() -> None:
    app, _ = start()
    app.store("s")
    with pytest.raises(ps.ConfigError, match="store `s` is declared but no operator uses it"):
        plan_topology(app.graph())
    app.store("t")
    with pytest.raises(ps.ConfigError, match="stores `s` and `t` are declared but no operator uses them: name them in"):
        plan_topology(app.graph())


def test_code_with_a_collector_reaches_every_output() -> None:
    app, stream = start()
    out = app.output("m.out")
    app.output("m.other")
    stream.sink(lambda *_: None)
    stream.process(Nothing).send_to(out)
    found = {(c.name, str(c.output)) for c in plan_topology(app.graph()).channels if c.output}
    assert found == {
        ("sink-1=>m.out", "m.out"), ("sink-1=>m.other", "m.other"), ("process-1=>m.out", "m.out"),
        ("process-1=>m.other", "m.other"), ("send_to-1", "m.out"),
    }  # fmt: skip


def test_every_stage_can_send_dead_letters() -> None:
    app, stream = start()
    stream.partition_by(str).map(str)
    topology = plan_topology(app.graph(), ps.SystemStream("m", "dead"))
    check(topology)
    dead = [c for c in topology.channels if c.name == DEAD_LETTER_CHANNEL]
    assert [(c.source_stage, c.target_stage, str(c.output)) for c in dead] == [(0, 2, "m.dead"), (1, 2, "m.dead")]
    assert topology.sink_sources == (0, 1)
    with pytest.raises(ps.ConfigError):
        stream.map(str, id=DEAD_LETTER_CHANNEL)


def test_exactly_once_outputs_are_behind_a_container_stage_without_operators() -> None:
    app, stream = start()
    stream.map(str).send_to(app.output("m.once"))
    topology = plan_topology(app.graph(), None, {ps.SystemStream("m", "once")})
    check(topology)
    assert stages(topology) == [["input-1", "map-1", "send_to-1"], []]
    assert channels(topology) == {("send_to-1", 0, (), 1, Routing.OUTPUT, False)}
    assert (topology.outbox, topology.sink, topology.sink_sources) == (1, None, ())
    assert [stage.number for stage in topology.container_stages] == [1]
    assert topology.is_shuffled(1)
    assert topology.expected_sources(1, 0, 2) == {(0, 0), (0, 1)}
    assert topology.targets_of(0) == (1,)


def test_other_outputs_are_written_behind_the_outbox() -> None:
    app, stream = start()
    keyed = stream.partition_by(str).map(str)
    keyed.send_to(app.output("m.once"))
    keyed.send_to(app.output("m.many"))
    topology = plan_topology(app.graph(), ps.SystemStream("m", "dead"), {ps.SystemStream("m", "once")})
    check(topology)
    to_streams = {(c.source_stage, c.target_stage, str(c.output)) for c in topology.channels if c.output is not None}
    assert to_streams == {(1, 2, "m.once"), (1, 3, "m.many"), (0, 3, "m.dead"), (1, 3, "m.dead")}
    assert (topology.outbox, topology.sink, topology.sink_sources) == (2, 3, (0, 1))
    assert topology.targets_of(1) == (2, 3)


def test_rows_for_a_dataframe_stay_in_their_task_unless_they_come_from_stage_0() -> None:
    app = ps.StreamApplication("a")
    out, kafka = ps.SystemStream("spark", "out"), ps.SystemStream("kafka", "out")
    keyed = app.input("spark.in").partition_by(str)
    rows = app.output(str(out))
    keyed.send_to(rows)
    topology = plan_topology(app.graph(), exactly_once={out})
    check(topology)
    assert topology.outbox == 2
    assert not topology.is_shuffled(2)
    assert topology.expected_sources(2, 1, 3) == {(1, 1)}

    keyed.send_to(app.output(str(kafka)))
    topology = plan_topology(app.graph(), exactly_once={out, kafka})
    check(topology)
    assert topology.is_shuffled(2)
    assert {c.output: c.routing for c in topology.channels_to(2)} == {out: Routing.TASK, kafka: Routing.OUTPUT}

    app = ps.StreamApplication("a")
    stream = app.input("spark.in")
    stream.send_to(app.output(str(out)))
    topology = plan_topology(app.graph(), exactly_once={out})
    check(topology)
    assert topology.is_shuffled(1)


def test_dead_letters_may_be_exactly_once() -> None:
    app, stream = start()
    stream.map(str)
    dead = ps.SystemStream("m", "dead")
    topology = plan_topology(app.graph(), dead, {dead})
    check(topology)
    assert (topology.outbox, topology.sink) == (1, None)


def test_without_exactly_once_outputs_there_is_no_outbox() -> None:
    app, stream = start()
    stream.send_to(app.output("m.out"))
    topology = plan_topology(app.graph(), None, {ps.SystemStream("m", "other")})
    assert (topology.outbox, topology.sink) == (None, 1)
