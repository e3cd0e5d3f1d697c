"""Building applications: ids, declarations, mistakes; peek, branch, reduce and deduplicate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.graph.specs import FilterSpec, InputSpec, MapSpec, PartitionBySpec, ProcessSpec, SendToSpec
from penstock.testing import TestRunner


class Nothing(ps.StreamTask):
    """Does nothing."""

    def process(self, *_: Any) -> None: ...


def app_with_input() -> tuple[ps.StreamApplication, ps.MessageStream[Any]]:
    app = ps.StreamApplication("a")
    return app, app.input("m.in")


def test_operators_are_numbered_by_kind_or_named() -> None:
    app, stream = app_with_input()
    out = app.output("m.out")
    stream.map(str).filter(bool, id="good").map(len).flat_map(range).partition_by(str).process(Nothing).send_to(out)
    stream.sink(lambda *_: None)
    ids = [op.id for op in app.graph().operators]
    assert ids == [
        "input-1", "map-1", "good", "map-2", "flat_map-1", "partition_by-1", "process-1", "send_to-1", "sink-1",
    ]  # fmt: skip


def test_the_graph_holds_who_reads_whom() -> None:
    app, stream = app_with_input()
    other = app.input("m.other")
    stream.filter(bool).merge(other.map(str), other, id="all")
    upstream = {op.id: op.upstream for op in app.graph().operators}
    assert upstream["all"] == ("filter-1", "map-1", "input-2")
    assert upstream["input-1"] == ()


def test_default_serdes() -> None:
    app = ps.StreamApplication("a")
    app.store("s")
    app.store("t", key=ps.Long(), value=ps.Double())
    out = app.output("m.out")
    source = app.input("m.in", key=ps.Long(), value=ps.String())
    source.filter(bool).partition_by(str).map(str).partition_by(str, key=ps.Bytes(), value=ps.Double()).process(
        Nothing, stores=["s", "t"]
    ).send_to(out)
    app.input("m.plain")
    graph = app.graph()
    serdes = {op.id: (op.key_serde.name, op.value_serde.name) for op in graph.operators}
    assert serdes == {
        "input-1": ("long", "string"), "filter-1": ("long", "string"), "partition_by-1": ("string", "string"),
        "map-1": ("string", "json"), "partition_by-2": ("bytes", "double"), "process-1": ("bytes", "json"),
        "send_to-1": ("bytes", "json"), "input-2": ("string", "json"),
    }  # fmt: skip
    stores = {s.name: (s.key_serde.name, s.value_serde.name) for s in graph.stores}
    assert stores == {"s": ("string", "json"), "t": ("ordered-long", "double")}
    assert [(str(o.stream), o.key_serde.name, o.value_serde.name) for o in graph.outputs] == [
        ("m.out", "string", "json")
    ]


def test_the_kinds_of_specs() -> None:
    app, stream = app_with_input()
    stream.filter(bool).map(str).partition_by(str).process(Nothing).send_to(app.output("m.o"))
    kinds = [type(op) for op in app.graph().operators]
    assert kinds == [InputSpec, FilterSpec, MapSpec, PartitionBySpec, ProcessSpec, SendToSpec]


def test_an_id_used_twice() -> None:
    _, stream = app_with_input()
    stream.map(str, id="x")
    with pytest.raises(ps.ConfigError, match="operator id `x` is used twice in application `a`"):
        stream.filter(bool, id="x")
    stream.map(str, id="filter-1")
    with pytest.raises(ps.ConfigError, match="`filter-1` is used twice"):
        stream.filter(bool)


@pytest.mark.parametrize("name", ["", "a b", "-a", ".a", "a/b", "é", "vélos", "\u0661", "a\n", "..", "a`b"])
def test_bad_names(name: str) -> None:
    app, stream = app_with_input()
    for make in (
        lambda: ps.StreamApplication(name),
        lambda: ps.TaskApplication(name, Nothing),
        lambda: app.store(name),
        lambda: stream.map(str, id=name),
        lambda: app.input("m.x", id=name),
    ):
        with pytest.raises(ps.ConfigError, match=r"holds `a` to `z`, `A` to `Z`, digits"):
            make()


def test_declared_twice() -> None:
    app, _ = app_with_input()
    app.store("s")
    app.output("m.out")
    with pytest.raises(ps.ConfigError, match="store `s` is declared twice"):
        app.store("s")
    with pytest.raises(ps.ConfigError, match=r"output `m\.out` is declared twice"):
        app.output("m.out")
    with pytest.raises(ps.ConfigError, match=r"input `m\.in` is declared twice.*reuse the first one"):
        app.input("m.in")


def test_a_failed_declaration_leaves_nothing_behind() -> None:
    app, stream = app_with_input()
    with pytest.raises(ps.ConfigError):
        stream.process(Nothing, stores=["s"])
    with pytest.raises(ps.ConfigError):
        app.input("no-system")
    stream.process(Nothing)
    assert [op.id for op in app.graph().operators] == ["input-1", "process-1"]


def test_an_undeclared_store() -> None:
    app, stream = app_with_input()
    with pytest.raises(ps.ConfigError, match=r"store `s` is not declared; declared stores: none\. Use `app\.store"):
        stream.process(Nothing, stores=["s"])
    app.store("t")
    with pytest.raises(ps.ConfigError, match="declared stores: `t`"):
        stream.process(Nothing, stores=["t", "s"])
    with pytest.raises(ps.ConfigError):
        stream.process(Nothing, stores="t2")


def test_what_is_not_a_task() -> None:
    _, stream = app_with_input()
    with pytest.raises(ps.ConfigError, match="takes a StreamTask class or a function that makes one, not 5"):
        stream.process(5)  # type: ignore[arg-type]


def test_an_output_that_is_not_declared_here() -> None:
    _, stream = app_with_input()
    other = ps.StreamApplication("b").output("m.out")
    with pytest.raises(ps.ConfigError, match=r"output `m\.out` is not declared"):
        stream.send_to(other)


def test_without_inputs() -> None:
    for app in (ps.StreamApplication("a"), ps.TaskApplication("a", Nothing)):
        with pytest.raises(ps.ConfigError, match=r"`a` has no input: add one with `app\.input"):
            app.graph()


def test_a_task_application_gets_everything() -> None:
    app = ps.TaskApplication("a", Nothing)
    app.input("m.a", key=ps.Long())
    app.input("m.b")
    app.store("s")
    graph = app.graph()
    task = graph.operators[-1]
    assert isinstance(task, ProcessSpec)
    assert (task.id, task.upstream, task.stores) == ("task", ("input-1", "input-2"), ("s",))
    ids = [op.id for op in graph.operators]
    assert [op.id for op in app.graph().operators] == ids, "looking at the graph does not change it"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"until": "yesterday"}, "until='yesterday': \"latest\" ends the job"),
        ({"until": ["latest"]}, "until="),
        ({"until": False}, "until=False"),
        ({"from_checkpoint": 5}, "from_checkpoint=5: expected the id of a checkpoint"),
    ],
)
def test_options_of_run_are_checked_before_anything_is_done(
    options: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    app = ps.StreamApplication("a")
    app.input("local.in")
    with pytest.raises(ps.ConfigError, match=problem):
        app.run(**options)
    with pytest.raises(TypeError, match="untill"):
        app.run(untill="latest")  # type: ignore[call-arg]
    assert not (tmp_path / "home").exists()


KEYED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=30)


def test_peek_sees_each_value_and_changes_none() -> None:
    seen: list[int] = []
    app = ps.StreamApplication("a")
    app.input("m.in").peek(seen.append).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [1, 0, 2]).run()
    assert [message.value for message in runner.output("m.out")] == seen == [1, 0, 2]


@pytest.mark.parametrize("by_column", [False, True])
def test_a_message_goes_to_the_first_branch_that_takes_it(by_column: bool) -> None:
    app = ps.StreamApplication("a")
    if by_column:
        stream: Any = app.input("m.in", value=ps.Columns(pa.schema({"n": pa.int64()})))
        conditions: Any = (ps.col("n") > 10, ps.col("n") > 3)
    else:
        stream, conditions = app.input("m.in"), (lambda row: (row["n"] or 0) > 10, lambda row: (row["n"] or 0) > 3)
    for number, branch in enumerate(stream.branch(*conditions, id="b")):
        branch.send_to(app.output(f"m.out-{number}"))
    rows = [{"n": n} for n in (1, 5, 50, 10, None, 11)]
    runner = TestRunner(app, partitions=1).input("m.in", rows).run()
    found = [[message.value["n"] for message in runner.output(f"m.out-{n}")] for n in range(3)]
    assert found == [[50, 11], [5, 10], [1, None]]
    assert {op.id for op in app.graph().operators} >= {"b-1", "b-2", "b-3"}


@given(messages=KEYED, size=st.sampled_from([1, 3, 100]))
def test_reduce_is_a_running_fold_of_each_key(messages: list[tuple[str, int]], size: int) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").reduce(lambda one, other: [one, other], id="pairs").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", messages).run(batch_messages=size)
    expected, so_far = [], dict[str, Any]()
    for key, value in messages:
        so_far[key] = [so_far[key], value] if key in so_far else value
        expected.append((key, so_far[key]))
    assert [(message.key, message.value) for message in runner.output("m.out")] == expected
    assert runner.commit().crash().restore().store("pairs") == so_far
    runner.close()


def test_reduce_passes_over_messages_without_a_value_and_refuses_those_without_a_key() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").reduce(max).send_to(app.output("m.out"))
    runner = (
        TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [("a", 1), ("a", None), 5, ("a", 2)]).run()
    )
    assert [message.value for message in runner.output("m.out")] == [1, 2]
    assert "has no key" in runner.output("m.dead")[0].value.decode()


@pytest.mark.parametrize("by", [None, lambda value: {"x": value["x"], "y": 0}])
def test_the_first_of_equal_messages_passes_until_it_is_forgotten(by: Any) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").deduplicate("1min", by=by, id="once").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1)
    rows = [("a", {"x": 1, "n": 1}), ("a", {"x": 1, "n": 2}), ("b", {"x": 1, "n": 3}), ("a", {"x": 2, "n": 4})]
    runner.input("m.in", rows).run().commit().crash().restore()
    passed = [1, 3] if by is None else [1, 3, 4]
    runner.input("m.in", rows[1:2]).run()
    assert [message.value["n"] for message in runner.output("m.out")] == passed
    runner.advance_time(61_000).input("m.in", rows[1:2]).run()
    assert [message.value["n"] for message in runner.output("m.out")] == [*passed, 2]


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda s: s.branch(), "at least one condition"),
        (lambda s: s.deduplicate("often"), "within is a duration"),
        (lambda s: s.peek(_later), "is `async def`"),
        (lambda s: s.peek(None), "the function is None, which cannot be called"),
        (lambda s: s.reduce("x"), "the function is 'x', which cannot be called"),
        (lambda s: s.branch([]), "a condition is \\[\\], which cannot be called"),
        (lambda s: s.map("x"), "the function is 'x', which cannot be called"),
        (lambda s: s.filter(None), "the function is None, which cannot be called"),
        (lambda s: s.reduce(_later), "is `async def`"),
    ],
)
def test_wrong_arguments_of_patterns(declare: Any, why: str) -> None:
    with pytest.raises(ps.ConfigError, match=why):
        declare(ps.StreamApplication("a").input("m.in"))


async def _later(*_: Any) -> None: ...
