"""map: value -> value."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.testing import TestRunner
from tests.support.oracles.tracebacks import frames_of_penstock


def test_each_value_is_replaced_and_key_and_timestamp_travel_along() -> None:
    app = ps.StreamApplication("a")
    out = app.output("m.out")
    app.input("m.in", key=ps.String()).map(lambda v: v * 2).map(str).send_to(out)
    runner = TestRunner(app, partitions=3).input("m.in", [("k", 1), ("k", 2)], timestamp=77).run()
    assert [(m.key, m.value, m.timestamp) for m in runner.output("m.out")] == [("k", "2", 77), ("k", "4", 77)]


def test_none_is_a_value_on_both_sides() -> None:
    app = ps.StreamApplication("a")
    out = app.output("m.out")
    app.input("m.in").map(lambda v: {None: 0, 0: None}.get(v, v)).send_to(out)
    runner = TestRunner(app, partitions=1).input("m.in", [None, 0, 1]).run()
    assert [m.value for m in runner.output("m.out")] == [0, None, 1]


def test_an_exception_names_message_and_operator() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in", key=ps.String()).map(lambda v: 1 // v, id="invert")
    runner = TestRunner(app, partitions=1).input("m.in", [("a", 1), ("b", 0), ("c", 1)])
    with pytest.raises(ps.UserCodeError) as caught:
        runner.run()
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset, failed.key) == ("m.in", 0, 1, "b")
    assert (failed.operator, failed.reason) == ("invert", "ZeroDivisionError: integer division or modulo by zero")
    assert str(caught.value).startswith("Traceback (most recent call last):\n")
    assert "1 // v" in failed.traceback
    assert frames_of_penstock(failed.traceback) == []
