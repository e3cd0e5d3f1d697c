"""Stores as nearly a dict, and what a task sees of its job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest

import penstock as ps
from penstock.config.load import load_config
from penstock.graph.stores import StoreSpec, TimeToLive
from penstock.state.engines.engine import Engine
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import build_store
from penstock.state.stores.task_store import TaskStore
from penstock.testing import TestRunner
from penstock.testing.runner.checks import CheckedStore

Build: TypeAlias = Callable[[StoreSpec, Engine, int], TaskStore]
STORES: list[Build] = [
    build_store,
    partial(build_store, undoable=True),
    partial(build_store, layers=(CheckedStore,)),
    partial(build_store, undoable=True, layers=(CheckedStore,)),
]


def store_of(build: Build, key: ps.Serde[Any], committed: dict[Any, Any], written: dict[Any, Any]) -> TaskStore:
    engine = MemoryEngine()
    store = build(StoreSpec("s", key.for_store_keys(), ps.Json()), engine, 100)
    overlay = store.begin()
    store.put_all(committed)
    engine.apply(overlay.changes)
    store = build(StoreSpec("s", key.for_store_keys(), ps.Json()), engine, 100)
    store.begin()
    store.put_all(written)
    return store


@pytest.mark.parametrize("build", STORES)
def test_as_a_dict(build: Build) -> None:
    store = store_of(build, ps.String(), {"a": 1, "b": 2, "gone": 3}, {"c": 0, "gone": None})
    expected = {"a": 1, "b": 2, "c": 0}
    assert dict(store.items()) == expected
    assert list(store) == sorted(expected)
    for key in ("a", "b", "c", "gone", "never"):
        assert (key in store) == (key in expected)
        assert store.get(key) == expected.get(key)
        assert store.get(key, 7) == expected.get(key, 7)
        if key in expected:
            assert store[key] == expected[key]
        else:
            with pytest.raises(KeyError, match=key):
                store[key]
    store["d"] = [4]
    del store["a"]
    del store["never"]
    store["b"] = None
    assert dict(store.items()) == {"c": 0, "d": [4]}
    with pytest.raises(ps.SerdeError, match="the key 5 is an int"):
        5 in store  # noqa: B015


PREFIXES: list[tuple[ps.Serde[Any], list[Any], list[Any], Callable[[Any, Any], bool]]] = [
    (
        ps.String(), ["", "N", "N1", "N12", "N2", "Né", "Ñ", "\U0010ffff", "\U0010ffffx"],
        ["", "N", "N1", "N12", "Né", "z", "\U0010ffff"], str.startswith,
    ),
    (ps.Bytes(), [b"", b"a", b"a\xff", b"a\xffb", b"b", b"\xff\xff"], [b"", b"a", b"a\xff", b"\xff"], bytes.startswith),
    (
        ps.Tuple(ps.String(), ps.Long()), [("t", 1), ("u", -1), ("u", 9), ("u", 100), ("ux", 0)],
        [(), ("u",), ("t",), ("x",), ("u", 9)], lambda key, prefix: key[: len(prefix)] == prefix,
    ),
]  # fmt: skip


@pytest.mark.parametrize("build", STORES)
@pytest.mark.parametrize(("key", "keys", "prefixes", "begins"), PREFIXES, ids=lambda p: getattr(p, "name", ""))
def test_items_by_prefix(
    build: Build, key: ps.Serde[Any], keys: list[Any], prefixes: list[Any], begins: Callable[[Any, Any], bool]
) -> None:
    store = store_of(build, key, dict.fromkeys(keys[::2], 1), dict.fromkeys(keys[1::2], 1))
    for prefix in prefixes:
        assert [each for each, _ in store.items(prefix=prefix)] == [
            each for each in sorted(keys) if begins(each, prefix)
        ]


@pytest.mark.parametrize("key", [ps.Long(), ps.Json(), ps.SamzaLong(), ps.Double()])
def test_keys_without_prefixes(key: ps.Serde[Any]) -> None:
    store = store_of(build_store, key, {1: 1}, {})
    with pytest.raises(ps.SerdeError, match="have no prefixes"):
        store.items(prefix=1)


@pytest.mark.parametrize("prefix", [("u", "x"), ("u", 1, 2), "u", (None,)])
def test_what_is_no_prefix_of_a_tuple(prefix: Any) -> None:
    with pytest.raises(ps.SerdeError, match=r"ps\.Tuple\(ps\.String\(\), ps\.Long\(\)\)"):
        store_of(build_store, ps.Tuple(ps.String(), ps.Long()), {}, {}).items(prefix=prefix)


class Reads(ps.StreamTask):
    """Writes down what the context says."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def init(self, context: ps.TaskContext) -> None:
        self.found.append(context.config)

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any
    ) -> None: ...


def test_a_task_sees_the_configuration() -> None:
    found: list[Any] = []
    app = ps.StreamApplication("a")
    app.input("m.in").process(lambda: Reads(found))
    given = {"app": {"limit": 5}, "app.names": "x,y", "task.commit.ms": "10s", "spark.some.password": "secret"}
    TestRunner(app, partitions=1, config=given).input("m.in", [1]).run()
    assert dict(found[0]) == {"app.limit": "5", "app.names": "x,y", "task.commit.ms": "10000", "job.name": "a"}
    with pytest.raises(TypeError):
        found[0]["app.limit"] = "6"
    with pytest.raises(ps.ConfigError, match=r"unknown key `ap\.limit`"):
        TestRunner(app, config={"ap.limit": 5})


def test_the_applications_own_keys_are_kept_as_they_are() -> None:
    config = load_config(assignments=["job.name=j", "app.a.b=1", "app.a.c-d_e=x=y"])
    assert config.for_tasks() == {"job.name": "j", "app.a.b": "1", "app.a.c-d_e": "x=y"}


def test_stores_is_not_one_text() -> None:
    app = ps.StreamApplication("a")
    app.store("counts")
    with pytest.raises(ps.ConfigError, match=r'process\(\) takes a list of names: stores=\["counts"\]'):
        app.input("m.in").process(lambda: Reads([]), stores="counts")


def events(values: list[int]) -> Iterator[tuple[str, int]]:
    return ((f"k{value % 3}", value) for value in values)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_functions_of_whole_messages(chained: bool, dead_letter: str | None) -> None:
    """Before a task, where operators run over columns, and after one, where messages come one by one."""
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    if chained:
        stream = stream.process(Passes)
    (
        stream.filter(lambda m: m.key != "k0" and m.timestamp == 5, envelope=True)
        .map(lambda m: [m.key, m.value, m.timestamp, m.offset, str(m.ssp)], envelope=True)
        .flat_map(lambda m: [[*m.value, m.key], [*m.value, None]], envelope=True)
        .filter(lambda value: value[-1] is not None)
        .partition_by(lambda m: f"{m.key}!{m.timestamp}", envelope=True)
        .send_to(app.output("m.out"))
    )
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter)
    runner.input("m.in", events([0, 1, 2]), timestamp=4).input("m.in", events([3, 4, 5]), timestamp=5).run()
    assert [(m.key, m.value) for m in runner.output("m.out")] == [
        (f"k{v % 3}!5", [f"k{v % 3}", v, 5, v, "m.in.0", f"k{v % 3}"]) for v in (4, 5)
    ]


class Passes(ps.StreamTask):
    """Hands every message on."""

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=envelope.value)


def test_a_function_of_a_whole_message_that_changes_the_value_is_found() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").map(lambda m: m.value.append(1), envelope=True).send_to(app.output("m.out"))
    with pytest.raises(Exception, match="changed"):
        TestRunner(app).input("m.in", [[0]]).run()


@pytest.mark.parametrize("build", STORES)
@pytest.mark.parametrize("ttl", [None, TimeToLive(1000)])
def test_put_all_does_what_put_does_for_each_entry(build: Build, ttl: TimeToLive | None) -> None:
    """Bytes are written without a call for each; scans that are open, `undo` and expiry see them all the same."""
    spec = StoreSpec("s", ps.Bytes(), ps.Bytes(), ttl)
    changes, entries = [], {b"a": b"1", b"b": None, b"c": b"3"}
    for at_once in (True, False):
        store = build(spec, MemoryEngine(), 100)
        overlay = store.begin()
        store.put_all({b"b": b"0", b"d": b"4"})
        store.mark()
        before = store.all()
        if at_once:
            store.put_all(entries)
        else:
            for key, value in entries.items():
                store.put(key, value)
        assert list(before) == [(b"b", b"0"), (b"d", b"4")]
        assert list(store.all()) == [(b"a", b"1"), (b"c", b"3"), (b"d", b"4")]
        changes.append(dict(overlay.changes))
    assert changes[0] == changes[1]
    with pytest.raises(ps.SerdeError, match="is a str"):
        store.put_all({b"a": "text"})


def test_undo_takes_back_entries_that_were_put_at_once() -> None:
    store = build_store(StoreSpec("s", ps.Bytes(), ps.Bytes()), MemoryEngine(), 100, undoable=True)
    store.begin()
    store.put_all({b"a": b"0"})
    store.mark()
    store.put_all({b"a": b"1", b"b": b"2"})
    store.undo()
    assert dict(store.items()) == {b"a": b"0"}
