"""merge: everything of several streams. partition_by: a new key, and the task that owns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner

FUNCTIONS: dict[str, tuple[Callable[[Any, Callable[[str], int]], Any], Callable[[list[int]], list[int]]]] = {
    "map": (lambda stream, _: stream.map(lambda v: v * 3 + 1), lambda values: [v * 3 + 1 for v in values]),
    "keyed": (
        lambda stream, key: stream.map(lambda e: e.value + key(e.key), envelope=True),
        lambda values: [v + 7 for v in values],
    ),
    "filter": (lambda stream, _: stream.filter(lambda v: v % 3), lambda values: [v for v in values if v % 3]),
    "flat_map": (
        lambda stream, _: stream.flat_map(lambda v: range(v % 4)),
        lambda vs: [n for v in vs for n in range(v % 4)],
    ),
}
BRANCH = st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=3)


class Seen(ps.StreamTask):
    """Sends on what it sees, with its key and the offset it is of."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(value=[envelope.key, envelope.value, envelope.offset])


def test_streams_of_one_depth() -> None:
    app = ps.StreamApplication("a")
    app.input("m.a").merge(app.input("m.b"), app.input("m.c")).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=2)
    for name, values in (("m.a", [1, 2]), ("m.b", [3]), ("m.c", [4, 5, 6])):
        runner.input(name, values)
    assert sorted(m.value for m in runner.run().output("m.out")) == [1, 2, 3, 4, 5, 6]


def test_streams_of_different_depths() -> None:
    """Raw input, once repartitioned, twice repartitioned: all meet in the last one's stage."""
    app = ps.StreamApplication("a")
    once = app.input("m.b").partition_by(str)
    twice = app.input("m.c").partition_by(str).map(lambda v: v * 10).partition_by(str)
    app.input("m.a").merge(once, twice).map(lambda v: v + 1).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=3).input("m.a", [1, 2]).input("m.b", [3, 4]).input("m.c", [5, 6]).run()
    assert sorted(m.value for m in runner.output("m.out")) == [2, 3, 4, 5, 51, 61]


def test_each_stream_keeps_its_order() -> None:
    app = ps.StreamApplication("a")
    app.input("m.a").merge(app.input("m.b")).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.a", range(50)).input("m.b", range(100, 150)).run(batch_messages=7)
    values = [m.value for m in runner.output("m.out")]
    assert [v for v in values if v < 100] == list(range(50))
    assert [v for v in values if v >= 100] == list(range(100, 150))


def test_inputs_of_different_serdes_are_decoded_by_their_own() -> None:
    app = ps.StreamApplication("a")
    texts = app.input("m.b", value=ps.String()).map(lambda v: {"text": v})
    app.input("m.a").merge(texts).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.a", [{"n": 1}]).input("m.b", ["x"]).run()
    assert sorted(map(str, (m.value for m in runner.output("m.out")))) == ["{'n': 1}", "{'text': 'x'}"]


def test_streams_of_two_applications_are_refused() -> None:
    with pytest.raises(ps.ConfigError, match="streams of one application"):
        ps.StreamApplication("a").input("m.a").merge(ps.StreamApplication("b").input("m.b"))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_merged_with_itself_is_refused_or_comes_twice_everywhere(shuffled: bool) -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.a").partition_by(str) if shuffled else app.input("m.a")
    try:
        stream.merge(stream).send_to(app.output("m.out"))
    except ps.ConfigError:
        return
    runner = TestRunner(app, partitions=1).input("m.a", [1]).run()
    assert [m.value for m in runner.output("m.out")] == [1, 1]


@settings(deadline=None)
@given(
    before=st.lists(st.sampled_from(sorted(FUNCTIONS)), max_size=2),
    branches=st.lists(BRANCH, min_size=2, max_size=3),
    after=BRANCH,
    values=st.lists(st.integers(0, 50), max_size=30),
    aside=st.booleans(),
    dead_letter=st.sampled_from([None, "m.dead"]),
)
def test_where_a_stream_parts_and_meets_again_each_message_passes_all_branches_before_the_next(
    before: list[str],
    branches: list[list[str]],
    after: list[str],
    values: list[int],
    aside: bool,
    dead_letter: str | None,
) -> None:
    def added(stream: Any, names: list[str]) -> Any:
        for name in names:
            stream = FUNCTIONS[name][0](stream, lambda key: len(key) + 2)
        return stream

    def computed(some: list[int], names: list[str]) -> list[int]:
        for name in names:
            some = FUNCTIONS[name][1](some)
        return some

    app = ps.StreamApplication("a")
    stream = added(app.input("m.in"), before)
    if aside:
        stream.send_to(app.output("m.aside"))
    first, *others = [added(stream, names) for names in branches]
    added(first.merge(*others), after).process(Seen).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter)
    keys = [f"k{n:04}" for n in range(len(values))]
    runner.input("m.in", list(zip(keys, values, strict=True))).run()
    expected = [
        [keys[offset], value, offset]
        for offset, given_value in enumerate(values)
        for one in computed([given_value], before)
        for names in branches
        for value in computed(computed([one], names), after)
    ]
    assert [m.value for m in runner.output("m.out")] == expected


def test_functions_between_the_parting_and_the_meeting_are_run_by_column() -> None:
    """One after the other over all messages, not all of them for each message; what they made is in order."""
    called = []

    def doing(name: str) -> Callable[[int], str]:
        def function(value: int) -> str:
            called.append(name)
            return f"{name}{value}"

        return function

    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    stream.map(doing("a")).merge(stream.map(doing("b"))).map(str.upper).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [1, 2, 3]).run()
    assert [m.value for m in runner.output("m.out")] == ["A1", "B1", "A2", "B2", "A3", "B3"]
    assert called == ["a"] * 3 + ["b"] * 3


TASKS = 5


def kafka_partition(key: bytes, partitions: int) -> int:
    """`toPositive(murmur2(key)) % partitions`, transcribed from Kafka's Java."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for i in range(len(key) // 4):
        k = int.from_bytes(key[4 * i : 4 * i + 4], "little")
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
    rest = key[len(key) & ~3 :]
    if len(rest) == 3:
        h ^= rest[2] << 16
    if len(rest) >= 2:
        h ^= rest[1] << 8
    if len(rest) >= 1:
        h = ((h ^ rest[0]) * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions


class Where(ps.StreamTask):
    """Emits the task each message came to."""

    def init(self, context: ps.TaskContext) -> None:
        self.task = context.partition

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, _: Any) -> None:
        collector.emit(key="same", value=[envelope.key, self.task, str(envelope.ssp), envelope.offset])


def tasks_of(values: list[Any], function: Any, key: Any = None) -> list[list[Any]]:
    app = ps.StreamApplication("a")
    app.input("m.in").partition_by(function, key=key).process(Where).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=TASKS).input("m.in", values).run()
    return [m.value for m in runner.output("m.out")]


def test_a_key_goes_where_kafka_puts_it() -> None:
    keys = ["N14228", "UA", "", "é", "abc", *(f"key {n}" for n in range(200))]
    found = {key: task for key, task, _, _ in tasks_of(keys, lambda v: v)}
    assert found == {key: kafka_partition(key.encode(), TASKS) for key in keys}


def test_other_key_serdes_place_by_their_bytes() -> None:
    found = {key: task for key, task, _, _ in tasks_of(list(range(50)), lambda v: v, ps.Long())}
    assert found == {n: kafka_partition(n.to_bytes(8, "big"), TASKS) for n in range(50)}


def test_without_a_key_all_go_to_task_0() -> None:
    found = tasks_of(list(range(12)), lambda v: None)
    assert [(key, task) for key, task, _, _ in found] == [(None, 0)] * 12


def test_the_envelope_still_names_the_input_message() -> None:
    found = tasks_of([f"k{n}" for n in range(10)], lambda v: v)
    assert {(key, ssp, offset) for key, _, ssp, offset in found} == {
        (f"k{n}", f"m.in.{n % TASKS}", n // TASKS) for n in range(10)
    }


def test_messages_of_one_source_and_key_stay_in_order() -> None:
    app = ps.StreamApplication("a")
    seen: dict[str, list[int]] = {}
    stream = app.input("m.in").partition_by(lambda v: str(v % 7))
    stream.sink(lambda envelope, _, __: seen.setdefault(envelope.key, []).append(envelope.value))
    TestRunner(app, partitions=3).input("m.in", range(20_000), partition=1).run()
    assert seen == {str(k): list(range(k, 20_000, 7)) for k in range(7)}


def test_a_key_function_that_raises_and_a_key_that_does_not_serialise() -> None:
    for function, reason in ((lambda v: v["x"], "TypeError"), (lambda v: object(), "SerdeError: ")):
        with pytest.raises(ps.UserCodeError) as caught:
            tasks_of([1], function)
        assert caught.value.failed.operator == "partition_by-1"
        assert caught.value.failed.reason.startswith(reason)


def test_equal_json_keys_are_one_key() -> None:
    """However the dicts were made: partitioning and state look at bytes only."""
    for n in range(10):
        found = tasks_of([[["a", n], ["b", 2]], [["b", 2], ["a", n]]], dict, ps.Json())
        assert len({task for _, task, _, _ in found}) == 1
