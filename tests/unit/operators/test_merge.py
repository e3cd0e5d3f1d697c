"""merge: everything of several streams."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.testing import TestRunner


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
