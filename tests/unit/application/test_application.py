"""Building applications: ids, declarations, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.graph.specs import FilterSpec, InputSpec, MapSpec, PartitionBySpec, ProcessSpec, SendToSpec


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
