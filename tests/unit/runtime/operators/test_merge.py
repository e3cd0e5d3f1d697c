"""merge: everything of several streams."""

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
