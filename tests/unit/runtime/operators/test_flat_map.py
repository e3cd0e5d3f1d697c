"""flat_map: value -> values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock as ps
from penstock.testing import TestRunner


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("a")

    def count(value: int) -> Iterator[int]:
        yield from range(abs(value))
        if value < 0:
            raise ValueError("half-way")

    app.input("m.in").flat_map(count, id="count").send_to(app.output("m.out"))
    return app


def test_none_one_or_many() -> None:
    runner = TestRunner(application(), partitions=1).input("m.in", [3, 0, 1]).run()
    assert [m.value for m in runner.output("m.out")] == [0, 1, 2, 0]


def test_any_iterable_will_do() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").flat_map(lambda v: v and list(v.items())).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [{"a": 1, "b": 2}, []]).run()
    assert [m.value for m in runner.output("m.out")] == [["a", 1], ["b", 2]]


def test_many_more_than_a_packet_holds() -> None:
    runner = TestRunner(application(), partitions=2).input("m.in", [20_000, 5, 20_000]).run()
    values = [m.value for m in runner.output("m.out")]
    assert sorted(values) == sorted([*range(20_000), *range(5), *range(20_000)])


def test_a_generator_that_fails_half_way() -> None:
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(application(), partitions=1).input("m.in", [2, -2]).run()
    assert (caught.value.failed.operator, caught.value.failed.offset) == ("count", 1)


def test_what_is_not_iterable() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").flat_map(lambda v: v, id="bad")
    with pytest.raises(ps.UserCodeError, match="'int' object is not iterable"):
        TestRunner(app, partitions=1).input("m.in", [1]).run()


def test_a_dead_letter_takes_back_what_was_emitted() -> None:
    runner = TestRunner(application(), partitions=1, dead_letter="m.dead").input("m.in", [2, -2, 1]).run()
    assert [m.value for m in runner.output("m.out")] == [0, 1, 0]
    assert runner.dead_letters == 1
