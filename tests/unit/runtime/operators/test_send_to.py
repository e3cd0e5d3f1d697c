"""send_to: an output stream."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.system.partitioner import partition_of
from penstock.testing import TestRunner


def test_placed_by_key_and_by_task_without_one() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in", key=ps.String()).send_to(app.output("m.out"))
    keys = [f"k{n}" for n in range(40)]
    runner = TestRunner(app, partitions=4).input("m.in", [(key, 1) for key in keys]).run()
    assert {m.key: m.partition for m in runner.output("m.out")} == {k: partition_of(k.encode(), 4) for k in keys}
    runner = TestRunner(app, partitions=4).input("m.in", range(4)).run()
    assert [(m.key, m.value, m.partition) for m in runner.output("m.out")] == [(None, n, n) for n in range(4)]


def test_the_stream_goes_on_and_two_outputs_get_the_same() -> None:
    app = ps.StreamApplication("a")
    first, second = app.output("m.first"), app.output("m.second", value=ps.Integer())
    app.input("m.in").send_to(first).map(lambda v: v + 1).send_to(second)
    runner = TestRunner(app, partitions=1).input("m.in", [1, 2]).run()
    assert [m.value for m in runner.output("m.first")] == [1, 2]
    assert [m.value for m in runner.output("m.second")] == [2, 3]


def test_a_value_the_output_cannot_take() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").send_to(app.output("m.out", value=ps.Integer()), id="write")
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [1, "x"]).run()
    assert (caught.value.failed.operator, caught.value.failed.offset) == ("write", 1)


def test_an_output_of_nowhere() -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=r"output `m.out` is not declared: use `app.output"):
        app.input("m.in").send_to(ps.SystemStream("m", "out"))
