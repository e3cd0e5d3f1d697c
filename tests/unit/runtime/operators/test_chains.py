"""Stateless operators one after the other: run column by column, with the results of one message after the other."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.graph.specs import FilterSpec, FlatMapSpec, FunctionSpec, MapSpec, PartitionBySpec
from penstock.runtime.context import MessagePage, Position, SspTable
from penstock.runtime.messages.columns import NOWHERE, MessageColumns, Target, one_by_one
from penstock.runtime.operators.base import Node, StageContext
from penstock.runtime.operators.table import operator_of
from penstock.runtime.operators.tasks.application_code import Requests
from penstock.testing import TestRunner
from tests.support.oracles.tracebacks import frames_of_penstock

STEPS: dict[str, tuple[Any, Any]] = {
    "map": (lambda stream: stream.map(lambda v: v * 3 + 1), lambda values: [v * 3 + 1 for v in values]),
    "filter": (lambda stream: stream.filter(lambda v: v % 3), lambda values: [v for v in values if v % 3]),
    "flat_map": (
        lambda stream: stream.flat_map(lambda v: range(v % 4)),
        lambda vs: [n for v in vs for n in range(v % 4)],
    ),
}


class Seen(ps.StreamTask):
    """Sends on what it sees, with the offset it is of."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(value=[envelope.value, envelope.offset])


@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    values=st.lists(st.integers(0, 50), max_size=30),
    branches=st.booleans(),
)
def test_a_chain_is_the_functions_one_after_the_other(steps: list[str], values: list[int], branches: bool) -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    if branches:  # the same chain where several ways begin
        stream.filter(lambda v: False).send_to(app.output("m.none"))
    expected = [([v], n) for n, v in enumerate(values)]
    for step in steps:
        add, compute = STEPS[step]
        stream = add(stream)
        expected = [(compute(some), n) for some, n in expected]
    stream.process(Seen).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", values).run()
    assert [m.value for m in runner.output("m.out")] == [[v, n] for some, n in expected for v in some]


class Spaced(ps.Json):
    """Writes what it is given with spaces around it, one more each time."""

    def __init__(self) -> None:
        self.written = 0

    def to_bytes(self, obj: Any) -> bytes:
        self.written += 1
        return b" " * self.written + super().to_bytes(obj)


@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_a_value_no_operator_changed_goes_on_as_it_was_read(dead_letter: str | None) -> None:
    app = ps.StreamApplication("a")
    spaced = Spaced()
    app.input("m.in", value=spaced).filter(lambda v: v["a"]).send_to(app.output("m.out", value=spaced))
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter)
    runner.input("m.in", [{"a": "x"}, {"a": ""}, {"a": "y"}]).run()
    assert [m.value for m in runner.output("m.out")] == [{"a": "x"}, {"a": "y"}]
    assert spaced.written == 3  # by the test's own input


@pytest.mark.parametrize("failing", ["map", "filter", "flat_map", "key", "send"])
def test_the_message_that_failed_is_named(failing: str) -> None:
    """After a filter that dropped some and a flat_map that doubled the others, the offset is still the input's."""

    def fail(at: str, result: Any) -> Any:
        def function(value: Any) -> Any:
            if at == failing and value == 14:
                raise ValueError("fourteen")
            return result(value)

        return function

    app = ps.StreamApplication("a")
    stream = app.input("m.in").filter(lambda v: v % 2 == 0).flat_map(lambda v: [v, v + 100])
    stream = stream.map(fail("map", lambda v: v)).filter(fail("filter", lambda v: True))
    stream = stream.flat_map(fail("flat_map", lambda v: [v])).map(
        lambda v: object() if (failing, v) == ("send", 14) else v
    )
    stream.partition_by(fail("key", str)).process(Seen).send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError) as raised:
        TestRunner(app, partitions=1).input("m.in", range(20)).run()
    assert "offset 14" in str(raised.value)
    assert frames_of_penstock(str(raised.value)) == []


def test_what_has_no_truth_fails_in_its_filter() -> None:
    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("neither true nor false")

    app = ps.StreamApplication("a")
    app.input("m.in").filter(lambda v: Neither(), id="odd-one").send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError, match=r"neither true nor false(.|\n)*`odd-one`"):
        TestRunner(app, partitions=1).input("m.in", [1]).run()


class Backwards(ps.Bytes):
    """Bytes that are stored the other way round."""

    def to_bytes(self, obj: bytes) -> bytes:
        return obj[::-1]

    def from_bytes(self, data: bytes) -> bytes:
        return data[::-1]


def test_a_subclass_of_bytes_is_decoded() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in", value=Backwards()).map(lambda v: v + b"!").send_to(app.output("m.out", value=ps.Bytes()))
    runner = TestRunner(app, partitions=1).input("m.in", [b"abc"]).run()
    assert [m.value for m in runner.output("m.out")] == [b"abc!"]


def test_a_filter_behind_a_task_fails_as_a_filter() -> None:
    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("neither true nor false")

    app = ps.StreamApplication("a")
    stream = app.input("m.in").process(Seen)
    stream.filter(lambda v: Neither(), id="odd-one").send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError, match=r"neither true nor false(.|\n)*`odd-one`"):
        TestRunner(app, partitions=1).input("m.in", [1]).run()


def test_each_message_of_a_column_counts_as_progress() -> None:
    """Who watches for a message that never ends must see that a slow operator goes on."""
    position = Position(MessagePage(SspTable(()), (), (), ()))
    seen: list[object] = []
    spec = MapSpec(id="m", upstream=(), key_serde=ps.Bytes(), value_serde=ps.Bytes(), function=_look(position, seen))
    node = operator_of(spec).build(StageContext("j", {}, 0, position, Requests(), {}, {}), NOWHERE)
    node.accept(MessageColumns(None, [None] * 3, [1, 2, 3], range(3)))
    assert len(set(seen)) == 3
    assert position.elements is None


def _look(position: Position, seen: list[object]) -> Any:
    def function(value: Any) -> Any:
        seen.append(position.progress())
        return value

    return function


KINDS: dict[str, tuple[type[FunctionSpec], Any]] = {
    "map": (MapSpec, lambda given: f"<{given}>"),
    "filter": (FilterSpec, lambda given: zlib.crc32(str(given).encode()) % 3),
    "flat_map": (FlatMapSpec, lambda given: str(given)[:20:9]),
    "partition_by": (PartitionBySpec, lambda given: f"key of {given}"),
}


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    values=st.lists(st.integers(0, 9), max_size=9),
    envelope=st.booleans(),
)
def test_messages_alone_become_what_they_become_in_columns(kinds: list[str], values: list[int], envelope: bool) -> None:
    """A task emits messages one by one: an operator treats each as it treats a column of them."""
    rows = range(len(values))
    position = Position(MessagePage(SspTable((("m", "in"),)), rows, [0] * len(values), rows))
    results: dict[str, list[tuple[int, str, str]]] = {}
    for form in ("one", "columns"):
        seen = results.setdefault(form, [])

        def take(key: Any, value: Any, seen: list[tuple[int, str, str]] = seen) -> None:
            seen.append((position.row, str(key), str(value)))

        node: Target = Node(one_by_one(take, position), position, take)
        for kind in kinds:
            spec, function = KINDS[kind]
            op = spec(
                id=kind,
                upstream=(),
                key_serde=ps.Bytes(),
                value_serde=ps.Bytes(),
                function=function,
                envelope=envelope,
            )
            node = operator_of(op).build(StageContext("j", {}, 0, position, Requests(), {}, {}), node)
        keys = [f"k{value}" for value in values]
        if form == "columns":
            node.accept(MessageColumns(None, keys, values, rows))
        else:
            for position.row, key, value in zip(rows, keys, values, strict=True):
                node.push(key, value)
    assert results["one"] == results["columns"]


def test_streams_that_part_and_meet_keep_the_order_of_messages() -> None:
    """All results of one message come before those of the next, whichever branch they took."""
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    odd = stream.filter(lambda v: v % 2).map(lambda v: ["odd", v])
    even = stream.filter(lambda v: v % 2 == 0).flat_map(lambda v: [["even", v], ["again", v]])
    odd.merge(even, stream).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", range(3000)).run()
    expected: list[Any] = []
    for n in range(3000):
        expected += [*([["odd", n]] if n % 2 else [["even", n], ["again", n]]), n]
    assert [m.value for m in runner.output("m.out")] == expected


class Writes(ps.StreamTask):
    """Counts messages in a store."""

    def init(self, context: Any) -> None:
        self.store = context.store("seen")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put("n", (self.store.get("n") or 0) + 1)


class Reads(Writes):
    """Emits how many messages were counted."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(value=self.store.get("n"))


def test_operators_that_share_a_store_see_one_message_after_the_other() -> None:
    app = ps.StreamApplication("a")
    app.store("seen")
    stream = app.input("m.in").partition_by(lambda v: "k")
    stream.process(Writes, stores=["seen"])
    stream.map(lambda v: v).process(Reads, stores=["seen"]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", range(3000)).run()
    assert [m.value for m in runner.output("m.out")] == list(range(1, 3001))
