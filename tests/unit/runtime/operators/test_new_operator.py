"""The parts of a new kind of operator, and of a new kind of windows: what describes it, and one class."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.ssp import SystemStream
from penstock.api.time.windows import WindowShape
from penstock.batch.batch import NO_WATERMARK, Batch
from penstock.graph.specs import OperatorSpec, WindowSpec
from penstock.graph.topology import plan_topology
from penstock.runtime.messages.columns import MessageColumns, Target
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, Packet, PacketKind, encode_messages
from penstock.runtime.operators.base import Firing, Node, Operator, StageContext
from penstock.runtime.operators.window import WindowNode
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.runtime.windows.cells import Cell, WindowSlot, key_slot
from penstock.start.check import order_warnings
from penstock.start.layout import store_layout
from penstock.state.engines.memory import MemoryEngine
from penstock.testing import TestRunner
from tests.support.oracles.stage_batches import OUT, Message, StageBatches
from tests.support.oracles.tracebacks import frames_of_penstock
from tests.support.streams.trailers import trailer


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsSpec(OperatorSpec):
    """Emits the sum of each key's values once the batch has no more messages."""

    operator = f"{__name__}:Totals"
    needs_task = True


class Totals(Operator[TotalsSpec]):
    """Sums in a store; they fire in the order of their keys, at the time that the key's name gives."""

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return _TotalsNode(self.spec, stage, downstream)


class _TotalsNode(Node):
    def __init__(self, spec: TotalsSpec, stage: StageContext, downstream: Target) -> None:
        super().__init__(self._add, stage.position)
        self._store = stage.stores[spec.stores[0]]
        self._downstream = downstream

    def _add(self, columns: MessageColumns) -> None:
        for key, value in zip(columns.keys, columns.values, strict=True):
            self._store.put(key, (self._store.get(key) or 0) + value)

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        for key, total in list(self._store.all()):
            if total == -1:
                raise ValueError("cannot say what is due")
            yield Firing(key.encode(), int(key[1:]), "total", partial(self._fire, key, total))

    def _fire(self, key: str, total: int) -> None:
        self._store.delete(key)
        self._store.get("never put")
        self._downstream.push(key, total)
        if total == 13:
            raise ValueError("thirteen")


def totals(stream: ps.MessageStream[Any], store: str) -> ps.MessageStream[Any]:
    """A stand-in for a method of MessageStream."""
    stream._declared.store(store, None, None)
    return stream._next("totals", None, lambda i: TotalsSpec(id=i, stores=(store,), **stream._same()))


def by_key(app: ps.StreamApplication) -> ps.MessageStream[Any]:
    return app.input("m.in").partition_by(lambda v: v[0]).map(lambda v: v[1])


def values_of(runner: TestRunner, stream: str = "m.out") -> dict[Any, Any]:
    return {m.key: (m.value, m.timestamp) for m in runner.output(stream)}


def test_it_runs_as_any_other() -> None:
    app = ps.StreamApplication("a")
    totals(by_key(app), "sums").map(lambda v: v * 100).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=3)
    runner.input("m.in", [["k1", 1], ["k2", 2], ["k1", 3]], timestamp=7).run()
    assert values_of(runner) == {"k1": (400, 1), "k2": (200, 2)}, "each with the time it fired at"
    assert runner.store("sums") == {}


def test_each_batch_ends_its_own_input() -> None:
    app = ps.StreamApplication("a")
    totals(by_key(app), "sums").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [["k1", 1]] * 6).run(batch_messages=2)
    assert [m.value for m in runner.output("m.out")] == [2, 2, 2]


@pytest.mark.parametrize("apart", [False, True])
def test_what_an_operator_fires_comes_before_the_end_of_the_next_one(apart: bool) -> None:
    """In topological order within a stage, and from stage to stage."""
    app = ps.StreamApplication("a")
    first = totals(by_key(app), "first")
    between = first.partition_by(lambda v: "k9") if apart else first.process(Rekey)
    totals(between, "second").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1)
    runner.input("m.in", [["k1", 1], ["k2", 2], ["k3", 3]]).run()
    assert values_of(runner) == {"k9": (6, 9)}


class Rekey(ps.StreamTask):
    """Emits all under one key."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        assert envelope.offset < 0, "no message led to it"
        assert (str(envelope.ssp.system_stream), envelope.ssp.partition) == ("none.none", 0)
        assert envelope.timestamp == int(envelope.key[1:])
        collector.emit(key="k9", value=envelope.value)


def test_many_fire() -> None:
    app = ps.StreamApplication("a")
    totals(by_key(app), "sums").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [[f"k{n}", n] for n in range(20, 20_000)]).run()
    assert values_of(runner) == {f"k{n}": (n, n) for n in range(20, 20_000)}


def test_a_firing_that_fails_ends_the_run() -> None:
    app = ps.StreamApplication("a")
    totals(by_key(app), "sums").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [["k1", 1], ["k2", 13], ["k3", 3]])
    with pytest.raises(ps.UserCodeError) as raised:
        runner.run()
    assert "ValueError: thirteen\n  in operator `totals-1`, at the end of a batch of task 0, key k2" in str(
        raised.value
    )
    assert frames_of_penstock(str(raised.value)) == []
    assert (runner.store("sums"), runner.output("m.out")) == ({}, [])


@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_an_operator_that_cannot_say_what_is_due_ends_the_run(dead_letter: str | None) -> None:
    app = ps.StreamApplication("a")
    totals(by_key(app), "sums").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [["k1", -1]])
    with pytest.raises(ps.UserCodeError, match=r"cannot say what is due\n  in operator `totals-1`, at the end"):
        runner.run()


def test_a_firing_that_fails_goes_to_the_dead_letters() -> None:
    """Its writes and what it emitted are undone; the others fire."""
    app = ps.StreamApplication("a")
    totals(by_key(app), "sums").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.in", [["k1", 1], ["k2", 13], ["k3", 3]]).run()
    assert values_of(runner) == {"k1": (1, 1), "k3": (3, 3)}
    assert runner.store("sums") == {"k2": 13}
    (letter,) = runner.output("m.dead")
    said = orjson.loads(letter.value)
    assert {name: said[name] for name in ("operator", "key", "value", "name", "timestamp", "offset", "reason")} == {
        "operator": "totals-1",
        "key": "k2",
        "value": None,
        "name": "total",
        "timestamp": 2,
        "offset": -2,
        "reason": "ValueError: thirteen",
    }
    assert (letter.key, letter.timestamp, runner.dead_letters) == (b"k2", 2, 1)


class BrokenEngine(MemoryEngine):
    """Cannot be read at one place."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    def get(self, key: bytes) -> bytes | None:
        if self.broken == "the firing" and key == b"never put":
            raise OSError("damaged")
        return super().get(key)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self.broken == "what is due":
            raise OSError("damaged")
        return super().scan(start, end)


@pytest.mark.parametrize("broken", ["the firing", "what is due"])
@pytest.mark.parametrize("dead_letter", [False, True])
def test_an_engine_that_fails_is_no_dead_letter(dead_letter: bool, broken: str) -> None:
    """The task has to be restored."""
    app = ps.StreamApplication("a")
    totals(app.input("m.in"), "sums").send_to(app.output("m.out"))
    topology = plan_topology(app.graph(), SystemStream("m", "dead") if dead_letter else None)
    settings = RuntimeSettings("a", 1, {"m.out": 1, "m.dead": 1}, dead_letter=dead_letter)
    task = TaskInstance(0, topology, settings, {"sums": BrokenEngine(broken)}, 0)
    attempt = task.start_attempt(1, "t", Batch(1, 1, 0))
    column = pa.RecordBatch.from_arrays(
        [pa.array([part], field.type) for part, field in zip([b"k1", b"1", 0, 0, 0], MESSAGE_SCHEMA, strict=True)],
        schema=MESSAGE_SCHEMA,
    )
    message = Packet(0, 1, PacketKind.DATA, 0, 0, "s", 0, -1, 0, 1, encode_messages(column))
    for packet in (message, trailer((0, 0), 1, 1, token="s")):
        assert list(attempt.accept(packet)) == []
    list(attempt.finish())
    report = attempt.report()
    assert report.error == ("ContainerLostError", "task 0: store `sums` cannot be read: OSError: damaged")
    assert (report.messages, report.failed, report.dead_letters) == (1, None, 0)
    task.close()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_what_fails_at_a_fired_message_names_its_own_operator(dead_letter: str | None, apart: bool) -> None:
    def fail(value: Any) -> Any:
        if value == 2:
            raise ValueError("two")
        return value

    app = ps.StreamApplication("a")
    stream = totals(by_key(app), "sums")
    stream = stream.partition_by(str) if apart else stream
    stream.map(fail, id="picky").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [["k1", 1], ["k2", 2]])
    if dead_letter is None:
        sent = "at a message from operator `partition_by-2` that a timer, a window or the end of a batch made in task 0"
        place = f"{sent if apart else 'at the end of a batch of task 0'}, key"
        with pytest.raises(ps.UserCodeError, match=rf"two\n  in operator `picky`, {place}"):
            runner.run()
        return
    runner.run()
    (letter,) = runner.output("m.dead")
    assert orjson.loads(letter.value)["operator"] == "picky"
    assert [m.value for m in runner.output("m.out")] == [1]
    assert runner.store("sums") == ({} if apart else {"k2": 2})


class SidesSpec(OperatorSpec):
    """Says which of its streams each message is from."""

    operator = f"{__name__}:Sides"
    needs_task = True


class Sides(Operator[SidesSpec]):
    """As a join does, it takes the messages of each stream separately."""

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return _SidesNode(stage, downstream)


class _SidesNode(Node):
    def __init__(self, stage: StageContext, downstream: Target) -> None:
        super().__init__(downstream.accept, stage.position)
        self._position = stage.position
        self._downstream = downstream

    def inlet(self, source: str) -> Target:
        def accept(columns: MessageColumns) -> None:
            self._downstream.accept(columns.with_values([[source, value] for value in columns.values]))

        return Node(accept, self._position)


@pytest.mark.parametrize("apart", [False, True])
def test_an_operator_knows_which_stream_a_message_is_from(apart: bool) -> None:
    app = ps.StreamApplication("a")
    left, right = app.input("m.l").partition_by(str), app.input("m.r").partition_by(str)
    if not apart:  # the right one comes from an operator of the same stage
        right = right.map(lambda v: v)
    upstream = {"upstream": (left._operator.id, right._operator.id)}
    both = left._next("sides", None, lambda i: SidesSpec(id=i, **{**left._same(), **upstream}))
    both.send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.l", [1, 2]).input("m.r", [3]).run()
    sides = {"partition_by-1": [1, 2], ("partition_by-2" if apart else "map-1"): [3]}
    assert sorted(m.value for m in runner.output("m.out")) == sorted([s, v] for s, vs in sides.items() for v in vs)


class BegunSpec(OperatorSpec):
    """Emits the batch that began before the message came."""

    operator = f"{__name__}:Begun"
    needs_task = True


class Begun(Operator[BegunSpec]):
    def build(self, stage: StageContext, downstream: Target) -> Node:
        return _BegunNode(self.spec.id, stage, downstream)


class _BegunNode(Node):
    def __init__(self, operator: str, stage: StageContext, downstream: Target) -> None:
        self._operator = operator
        self._downstream = downstream
        self._begun: list[Batch] = []
        super().__init__(self._accept, stage.position)

    def begin(self, batch: Batch) -> None:
        self._begun.append(batch)

    def _accept(self, columns: MessageColumns) -> None:
        numbers = [batch.number for batch in self._begun]
        last = self._begun[-1]
        for key in columns.keys:
            self._downstream.push(key, [numbers, last.late_watermark(self._operator), last.firing_watermark("other")])


def test_an_attempt_begins_before_its_first_message() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    begun = stream._next("begun", None, lambda i: BegunSpec(id=i, **stream._same()))
    begun.send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [1, 2, 3]).run(batch_messages=2)
    assert [m.value[0] for m in runner.output("m.out")] == [[1], [1], [1, 2]]
    assert {tuple(m.value[1:]) for m in runner.output("m.out")} == {(NO_WATERMARK, NO_WATERMARK)}


@dataclass(frozen=True, slots=True)
class Terms(WindowShape):
    """Spans of time between given bounds."""

    node = f"{__name__}:TermsNode"
    order_matters = "it is in order that terms are"

    bounds_ms: tuple[int, ...]


class TermsNode(WindowNode):
    """Spans of time between given bounds."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Terms) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._bounds = shape.bounds_ms
        self._open: dict[WindowSlot, Cell] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        number = bisect_right(self._bounds, time_ms)
        slot = WindowSlot(self._bounds[number], self._bounds[number - 1], key_slot(key))
        if self._too_late(slot.end):
            return False
        cell = self._open.get(slot)
        if cell is None:
            cell = self._open[slot] = self._cells.load(slot) or self._cells.new(slot)
        self._add(cell, value, time_ms)
        return True


TERMS = Terms((0, 10, 15, 100))


def terms(**options: Any) -> ps.Window:
    """A stand-in for a method of `Windows`."""
    return replace(ps.Windows.tumbling(1, **options), shape=TERMS)


def shown(pane: ps.WindowPane[Any, Any]) -> list[Any]:
    return [pane.window.start_ms, pane.window.end_ms, pane.message, pane.firing]


def application(window: ps.Window, value: ps.Serde[Any] | None = None) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.input("m.in", value=value).window(window, id="w").map(shown).send_to(app.output(OUT))
    return app


def test_a_new_kind_of_windows_runs_as_any_other() -> None:
    job = StageBatches(application(terms(fold=(0, lambda total, n: total + n))), "w")
    assert job.run([Message("k", 1, 3), Message("k", 2, 12), Message("k", 3, 9)], 5) == {}
    job.restart()
    assert job.task.next_due() == {"w": (10, None)}
    sent = job.run([Message("k", 4, 14), Message("j", 5, 99)], 15)
    assert [value for _, value, _ in sent[OUT]] == [[0, 10, 4, "on-time"], [10, 15, 6, "on-time"]]
    assert job.task.next_due() == {"w": (100, None)}
    job.close()


def test_its_aggregates_of_rows() -> None:
    """They are computed one message at a time, because the shape has no form by column."""
    pa = pytest.importorskip("pyarrow")
    rows = ps.Columns(pa.schema([("n", pa.int64())]))
    app = application(terms(aggregates={"sum": ps.Sum(ps.col("n"))}), rows)
    runner = TestRunner(app, partitions=1)
    for time_ms in (3, 12, 14):
        runner.input("m.in", [("k", {"n": time_ms})], timestamp=time_ms)
    found = [message.value for message in runner.run().end_inputs().output(OUT)]
    assert found == [[0, 10, {"sum": 3}, "on-time"], [10, 15, {"sum": 26}, "on-time"]]


def test_whoever_plans_asks_the_shape() -> None:
    graph = application(terms()).graph()
    assert "Terms(bounds_ms=(0,10,15,100)):event:messages(json):string" in store_layout(graph)["w.window"]
    (warning,) = order_warnings(graph, lambda _: False)
    assert "because it is in order that terms are" in warning
