"""State never depends on what was cached: runs with and without a restart between their messages end alike."""

from __future__ import annotations

import datetime
import enum
import shutil
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import penstock as ps
from penstock.api.serdes import Serde
from penstock.config.load import load_config
from penstock.graph.stores import StoreSpec
from penstock.objects.open import forget_memory_store, open_store
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.build import build_store
from penstock.system.memory import MemorySystem
from penstock.testing import StaleValueError, TestRunner, UnwrittenChangeError
from penstock.testing.in_process import InProcessDriver


def committed(app: ps.StreamApplication, values: list[Any], *, restarts: bool) -> dict[str, dict[bytes, bytes]]:
    """The content of every store, each value in a batch of its own; with `restarts`, a new driver for each."""
    root, folder, system = f"memory://{uuid.uuid4().hex}", tempfile.mkdtemp(), MemorySystem("m")
    system.admin().create_stream("in", 1)
    ssp = ps.SystemStreamPartition("m", "in", 0)
    keys = {f"stores.{spec.name}.factory": "memory" for spec in app.graph().stores}
    config = load_config(
        overrides={
            "job.name": "job",
            "job.root": root,
            "job.logged.store.base.dir": folder,
            "task.commit.ms": 0,
            **keys,
        },
        environ={},
    )
    systems = {"m": system, "local": MemorySystem("local")}
    driver: InProcessDriver | None = None
    for batch, value in enumerate(values, 1):
        if driver is None or restarts:
            if driver is not None:
                driver.loop.commit()
                driver.close()
            driver = InProcessDriver(app.graph(), config, open_store(root), systems)
            driver.loop.start()
        system.writer(None).append(ssp, [(0, b"k", ps.Json().to_bytes(value))])
        driver.loop.step()
        assert driver.loop.boundary.batch == batch
    assert driver is not None
    engines = driver.fleet.container_of(0).tasks[0]
    found = {spec.name: dict(engines.engine(spec.name).scan(None, None)) for spec in app.graph().stores}
    driver.close()
    forget_memory_store(root)
    shutil.rmtree(folder)
    return found


class TotalAndLast(ps.StreamTask):
    """One object is put under two keys and then changed through one of them."""

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        last = self.store.get("last") or {"n": 0}
        total = self.store.get("total") or {"n": 0}
        total["n"] += 1
        self.store.put("total", total)
        self.store.put("last", total)
        self.store.put("before", last)


class Forgetful(ps.StreamTask):
    """Changes what it got without putting it, and after it was put."""

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        (self.store.get("a") or {})["lost"] = True
        value = {"n": envelope.value, "list": [1]}
        self.store.put("a", value)
        value["list"].append(2)
        collector.emit(key="a", value=self.store.get("a"))


class Follower(ps.StreamTask):
    """Shares the store of the one before it, and changes the value that both know."""

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        envelope.value["list"].append(3)
        found = self.store.get("a")
        found["list"].append(4)
        self.store.put("b", self.store.get("a"))


class Typed(ps.StreamTask):
    """Puts values that come back as other types, and stores what it then gets."""

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        seen = self.store.get("value")
        self.store.put("type", type(seen).__name__)
        self.store.put("value", VALUES[envelope.value])


class Colour(enum.IntEnum):
    """An int that is more."""

    RED = 1


VALUES: list[Any] = [(1, 2), datetime.date(2013, 1, 1), -0.0, Colour.RED, {"a": (1,)}, True, 1, "x"]


def app_of(*tasks: type[ps.StreamTask]) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.store("s")
    stream = app.input("m.in").partition_by(lambda _: "k")
    for task in tasks:
        stream = stream.process(task, stores=["s"])
    stream.sink(lambda *_: None)
    return app


@pytest.mark.few(2)
@pytest.mark.parametrize("tasks", [(TotalAndLast,), (Forgetful,), (Forgetful, Follower), (Typed,)])
def test_state_is_the_same_with_and_without_restarts(tasks: tuple[type[ps.StreamTask], ...]) -> None:
    values = list(range(len(VALUES)))
    stay = committed(app_of(*tasks), values, restarts=False)
    assert stay == committed(app_of(*tasks), values, restarts=True)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_at_once_as_it_will_after_a_restart(value: Any) -> None:
    engine = MemoryEngine()
    store = build_store(StoreSpec("s", ps.String(), ps.Json()), engine, 10)
    overlay = store.begin()
    store.put("k", value)
    at_once = store.get("k")
    engine.apply(overlay.changes)
    store.begin()
    cached = store.get("k")
    later = build_store(StoreSpec("s", ps.String(), ps.Json()), engine, 10).get("k")
    assert [repr(at_once), type(at_once)] == [repr(cached), type(cached)] == [repr(later), type(later)]


def test_one_object_under_two_keys_is_two_values() -> None:
    store = build_store(StoreSpec("s", ps.String(), ps.Json()), MemoryEngine(), 10)
    store.begin()
    value = {"n": 1}
    store.put("a", value)
    store.put("b", value)
    value["n"] = 2
    assert (store.get("a"), store.get("b")) == ({"n": 1}, {"n": 1})
    assert store.get("a") is not store.get("a")


# What the TestRunner finds.


def run(process: Any, *, dead_letter: str | None = None, messages: int = 3, batch: int | None = None) -> TestRunner:
    class Task(ps.StreamTask):
        def init(self, context: Any) -> None:
            self.store, self.kept = context.store("s"), None

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            process(self, envelope.value, self.store)

    runner = TestRunner(app_of(Task), partitions=1, dead_letter=dead_letter)
    return runner.input("m.in", list(range(messages))).run(batch_messages=batch)


def changes_without_put(task: Any, n: int, store: Any) -> None:
    (store.get("k") or {})["n"] = n
    if n == 0:
        store.put("k", {"n": -1})


def changes_after_put(task: Any, n: int, store: Any) -> None:
    value = {"n": 0}
    store.put("k", value)
    value["n"] = 1


def changes_what_it_kept(task: Any, n: int, store: Any) -> None:
    if n == 0:
        task.kept = {"n": 0}
        store.put("k", task.kept)
    if n == 2:
        task.kept["n"] = 5


def changes_what_a_scan_gave(task: Any, n: int, store: Any) -> None:
    for _, value in store.all():
        value["n"] = 7
    store.put(f"{n}", {"n": n})


@pytest.mark.parametrize("batch", [1, None])
@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
@pytest.mark.parametrize(
    "process", [changes_without_put, changes_after_put, changes_what_it_kept, changes_what_a_scan_gave]
)
def test_a_change_that_was_not_put_is_found(process: Any, dead_letter: str | None, batch: int | None) -> None:
    expected = ps.UserCodeError if dead_letter is None else UnwrittenChangeError
    with pytest.raises(expected, match="without a put"):
        run(process, dead_letter=dead_letter, batch=batch)


def puts_a_second_copy(task: Any, n: int, store: Any) -> None:
    first, second = store.get("k") or {"n": 0}, store.get("k") or {"n": 0}
    first["n"] += 1
    store.put("k", first)
    second["n"] += 1
    store.put("k", second)  # for the first message, both are new objects


def puts_what_it_kept(task: Any, n: int, store: Any) -> None:
    if n == 0:
        task.kept = {"n": 0}
        store.put("k", task.kept)
    if n == 1:
        store.put("k", {"n": 10})
    if n == 2:
        task.kept["n"] += 1
        store.put("k", task.kept)


def keeps_what_a_failed_message_changed(task: Any, n: int, store: Any) -> None:
    if task.kept is None:
        task.kept = store.get("k") or {"n": 0, "seen": []}
        store.put("k", task.kept)
    if n > 0:
        task.kept["seen"].append(n)
        store.put("k", task.kept)
    if n == 1:
        raise ValueError(n)


@pytest.mark.parametrize(
    ("process", "dead_letter"),
    [
        (puts_a_second_copy, None),
        (puts_a_second_copy, "m.dead"),
        (puts_what_it_kept, None),
        (puts_what_it_kept, "m.dead"),
        (keeps_what_a_failed_message_changed, "m.dead"),
    ],
)
def test_a_value_from_before_another_put_is_found(process: Any, dead_letter: str | None) -> None:
    expected = ps.UserCodeError if dead_letter is None else StaleValueError
    with pytest.raises(expected, match="Call get again"):
        run(process, dead_letter=dead_letter)


def in_order(task: Any, n: int, store: Any) -> None:
    """Everything that is right: copies under other keys, deletes, replacements, a value that is only read, one kept."""
    row: dict[str, Any] = {"n": n}
    for name in ("x", "y"):
        row["name"] = name
        store.put(name, row)
    found = store.get("x")
    found["n"] = 99
    store.put("z", found)
    gone = store.get("y")
    gone["end"] = True
    store.delete("y")
    replaced = store.get("z")
    replaced["n"] = 1
    store.put("z", {**replaced})
    task.kept = task.kept or {"n": 0}
    task.kept["n"] += 1
    store.put("kept", task.kept)
    assert list(store.all())


@pytest.mark.parametrize("batch", [1, None])
@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_what_is_right_is_left_alone(dead_letter: str | None, batch: int | None) -> None:
    runner = run(in_order, dead_letter=dead_letter, batch=batch)
    assert runner.store("s") == {"x": {"n": 2, "name": "x"}, "z": {"n": 1, "name": "x"}, "kept": {"n": 3}}
    assert runner.dead_letters == 0


# Serdes that return something else.


class Wrong(Serde[Any]):
    """Returns what it is told to."""

    ordered = True

    def __init__(self, make: Any) -> None:
        self._make = make

    def to_bytes(self, obj: Any) -> Any:
        return self._make(obj)

    def from_bytes(self, data: bytes) -> Any:
        return data


WRONG: list[Any] = [str, lambda obj: bytearray(str(obj), "utf-8"), lambda obj: memoryview(b"x"), lambda obj: None]


@pytest.mark.parametrize("make", WRONG)
def test_a_serde_that_does_not_return_bytes_is_named_at_once(make: Any) -> None:
    kind = type(make(1)).__name__
    for spec, where in (
        (StoreSpec("s", ps.Integer(), Wrong(make)), "store `s`, value of key 1"),
        (StoreSpec("s", Wrong(make), ps.Integer()), "store `s`, key 1"),
    ):
        store = build_store(spec, MemoryEngine(), 10)
        overlay = store.begin()
        calls: list[Callable[[], object]] = [partial(store.put, 1, 1)]
        if spec.value_serde.name == "integer":
            calls += [partial(store.get, 1), partial(store.delete, 1)]
            calls += [partial(lambda own: list(own.range(1, 2)), store)]
        for call in calls:
            with pytest.raises(
                TypeError, match=f"{where}: `Wrong.to_bytes` returned {kind}, but a serde returns bytes"
            ):
                call()
        assert overlay.changes == {}


@pytest.mark.few(4)
@pytest.mark.parametrize("make", WRONG[:3])
@pytest.mark.parametrize("emits", [True, False], ids=["by a task", "by columns"])
@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_an_output_serde_that_does_not_return_bytes(make: Any, emits: bool, dead_letter: str | None) -> None:
    class Emit(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key="k", value=envelope.value)

    for serdes in ({"value": Wrong(make)}, {"key": Wrong(make)}):
        app = ps.StreamApplication("a")
        stream = app.input("m.in").partition_by(lambda n: f"k{n}")
        stream = stream.process(Emit) if emits else stream.map(lambda n: n + 1)
        stream.send_to(app.output("m.out", **serdes))
        runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [1, 2])
        if dead_letter:
            assert runner.run().dead_letters == 2
            reason = runner.output("m.dead")[0].value.decode()
        else:
            with pytest.raises(ps.UserCodeError) as caught:
                runner.run()
            failed = caught.value.failed
            assert (failed.stream, failed.partition, failed.offset) == ("m.in", 0, 0)
            reason = failed.reason
        assert "TypeError: output `m.out`, " in reason
        assert f"`Wrong.to_bytes` returned {type(make(1)).__name__}" in reason
