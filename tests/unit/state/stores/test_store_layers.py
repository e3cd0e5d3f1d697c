"""Stores around stores: every layer of a stack acts, whatever else is in it; views, and stores of timers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

import penstock as ps
from penstock.api.serdes import Bytes
from penstock.api.ssp import SystemStream
from penstock.batch.batch import Batch
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.graph.topology import plan_topology
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.instance import StageInstance
from penstock.runtime.timers import Timers, place_of
from penstock.side.engine import SideEngine, SidePositions
from penstock.state.engines.engine import EngineFailedError
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import SideInputStore, build_store
from penstock.state.stores.task_store import StoreLayer, TaskStore
from penstock.state.stores.timed_entries import timer_problem
from penstock.testing.runner.checks import CheckedStore, UnwrittenChangeError

SPEC = StoreSpec("s", ps.String(), ps.Json())


class Calls(StoreLayer):
    """Notes what the task calls, as a store that measures would."""

    def __init__(self, inner: TaskStore) -> None:
        super().__init__(inner)
        self.calls: list[Any] = []

    def get(self, key: Any, default: Any = None) -> Any:
        self.calls.append(("get", key))
        return self.inner.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self.calls.append(("put", key, value))
        self.inner.put(key, value)

    def range(self, from_key: Any, to_key: Any) -> Iterator[tuple[Any, Any]]:
        self.calls.append(("range", from_key, to_key))
        return self.inner.range(from_key, to_key)


class Nothing(StoreLayer):
    """Replaces no call."""


class Total(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


def instance_of(*, dead_letter: bool, layers: tuple[type[StoreLayer], ...]) -> StageInstance:
    app = ps.StreamApplication("layers")
    app.store("s")
    app.input("m.in").partition_by(str).process(Total, stores=["s"])
    dead = SystemStream("m", "dead") if dead_letter else None
    settings = RuntimeSettings("layers", 1, {"m.dead": 1}, dead_letter=dead_letter, store_layers=layers)
    topology = plan_topology(app.graph(), dead)
    stage = next(stage.number for stage in topology.stages if stage.stores)
    instance = StageInstance(topology, stage, 0, settings, {"s": MemoryEngine()})
    instance.begin("t", Batch(1, 1, 0))
    return instance


@pytest.mark.parametrize("layers", [*permutations((CheckedStore, Calls, Nothing)), (CheckedStore,), ()])
@pytest.mark.parametrize("dead_letter", [False, True])
def test_checks_and_dead_letters_both_act(layers: tuple[type[StoreLayer], ...], dead_letter: bool) -> None:
    instance = instance_of(dead_letter=dead_letter, layers=layers)
    store = instance.stores["s"]
    store.put("kept", [1])
    if dead_letter:
        mark = instance.mark()
        store.put("kept", [2])
        store.put("new", [3])
        store.delete("never")
        instance.undo(mark)
        assert list(store.all()) == [("kept", [1])]
    value: Any = store.get("kept")
    value.append(4)
    if CheckedStore in layers:
        with pytest.raises(UnwrittenChangeError, match="the value of key 'kept' was changed after get or put"):
            store.check()
    else:
        store.check()
    counted = store.find(Calls)
    assert (counted is not None) == (Calls in layers)
    if counted is not None:
        assert counted.calls[0] == ("put", "kept", [1])
        assert (("put", "never", None) in counted.calls) == dead_letter
        assert counted.calls[-1] == ("get", "kept")


@pytest.mark.parametrize("undoable", [False, True])
@pytest.mark.parametrize("layers", [(), (Nothing,), (Calls, CheckedStore), (CheckedStore, Calls, Nothing)])
def test_every_way_to_read_and_write_passes_all_layers(undoable: bool, layers: tuple[type[StoreLayer], ...]) -> None:
    store = build_store(SPEC, MemoryEngine(), 10, undoable=undoable, layers=layers)
    overlay = store.begin()
    store.mark()
    store["a"] = 1
    store.put_all({"b": 2, "c": 3, "d": 4})
    store.delete("b")
    del store["c"]
    store.delete_all(["c", "never"])
    assert overlay.changes == {b"a": b"1", b"b": None, b"c": None, b"d": b"4", b"never": None}
    assert store.overlay is overlay
    assert store.get_all(["a", "b"]) == {"a": 1, "b": None}
    assert [*store.range("a", "z"), *store.all(), *store.items(), *store.snapshot("b", "z")] == [
        *[("a", 1), ("d", 4)] * 3,
        ("d", 4),
    ]
    assert list(store.items(prefix="d")) == [("d", 4)]
    assert (store.name, repr(store), store.key_bytes("a")) == ("s", "<store s: string keys, json values>", b"a")
    if undoable:
        store.undo()
        assert list(store.all()) == []
    else:
        with pytest.raises(AssertionError, match="store `s` was built without undo"):
            store.undo()


def test_an_engine_that_fails_is_known_at_the_top() -> None:
    class Broken(MemoryEngine):
        def get(self, key: bytes) -> bytes | None:
            raise OSError("no disk")

    store = build_store(SPEC, Broken(), 10, undoable=True, layers=(CheckedStore, Calls))
    store.begin()
    with pytest.raises(EngineFailedError, match="store `s` cannot be read: OSError: no disk"):
        store.get("a")
    assert "no disk" in str(store.failure)


def test_a_call_that_no_layer_replaces_is_the_innermost_stores_own() -> None:
    """A call that no layer replaces costs nothing."""
    store = build_store(SPEC, MemoryEngine(), 10, undoable=True, layers=(Nothing, Nothing))
    assert store.get.__self__.__class__.__name__ == "SerdeStore"  # type: ignore[attr-defined]
    assert store.put.__self__.__class__.__name__ == "UndoableStore"  # type: ignore[attr-defined]


def engine_of() -> MemoryEngine:
    engine = MemoryEngine()
    store = build_store(StoreSpec("t.timers", Bytes(), Bytes()), engine, 0, time_ms=0)
    timers = Timers(store)
    for n in range(5):
        timers.set("event", place_of(b"k%d" % n, "name"), 10 * n)
        timers.set("processing", place_of(None, str(n)), n)
    timers.set("event", place_of(b"k1", "name"), 7)
    timers.cancel("event", place_of(b"k2", "name"))
    engine.apply(store.overlay.take())
    return engine


def test_what_timers_leave_is_right() -> None:
    engine = engine_of()
    assert timer_problem(engine) is None
    assert sum(1 for _ in engine.scan(None, None)) == 2 * 9


@pytest.mark.parametrize(
    ("order", "said"), [(b"k", "9 timers are found by their times, and 8"), (b"t", "not by its time")]
)
def test_an_entry_is_missing(order: bytes, said: str) -> None:
    engine = engine_of()
    first = next(key for key, _ in engine.scan(order, None))
    engine.apply({first: None})
    assert said in str(timer_problem(engine))


def test_an_entry_is_of_no_timer() -> None:
    engine = engine_of()
    engine.apply({b"x": b""})
    assert "an entry is of no timer: b'x'" in str(timer_problem(engine))


SIDE = SideInputs((SideStream(SystemStream("m", "planes"), ps.String(), ps.Json()),))
VIEWED = StoreSpec("planes", ps.String(), ps.Json(), side=SIDE)


def engine(**entries: bytes) -> SideEngine:
    made = SideEngine(MemoryEngine(), "memory")
    write(made, **entries)
    return made


def write(content: SideEngine, **entries: bytes | None) -> None:
    content.write({key.encode(): value for key, value in entries.items()}, SidePositions())


@pytest.mark.wing("side")
def test_another_view_shows_what_has_changed_and_reads_nothing_else_again() -> None:
    content = engine(a=b"1", b=b"2")
    store = SideInputStore(VIEWED, content.view(), 100)
    store.begin()
    assert [store.get(key) for key in "abc"] == [1, 2, None]
    write(content, a=b"10", c=b"30")
    assert [store.get(key) for key in "abc"] == [1, 2, None], "the running attempt sees one state"
    assert store.take_reads() == (6, 3, 0)
    store.show(content.view())
    store.begin()
    assert [store.get(key) for key in "abc"] == [10, 2, 30]
    assert store.take_reads() == (3, 2, 0)
    assert list(store.all()) == [("a", 10), ("b", 2), ("c", 30)]
    assert store.overlay.take() == {}


@pytest.mark.wing("side")
def test_a_view_of_other_content_makes_it_forget_everything() -> None:
    store = SideInputStore(VIEWED, engine(a=b"1", b=b"2").view(), 100)
    store.begin()
    assert [store.get(key) for key in "ab"] == [1, 2]
    store.show(engine(a=b"1").view())
    assert [store.get(key) for key in "ab"] == [1, None]


@pytest.mark.wing("side")
@pytest.mark.parametrize(
    "write_to",
    [
        lambda store: store.put("a", 1),
        lambda store: store.delete("a"),
        lambda store: store.put_all({"a": 1}),
        lambda store: store.delete_all(["a"]),
        lambda store: store.__setitem__("a", 1),
        lambda store: store.__delitem__("a"),
    ],
)
def test_every_write_is_refused(write_to: Any) -> None:
    store = SideInputStore(VIEWED, engine().view(), 100)
    with pytest.raises(
        ps.ConfigError, match=r"store `planes` is filled by its side inputs `m.planes` and is read-only"
    ):
        write_to(store)
