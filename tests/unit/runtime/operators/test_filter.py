"""filter: keeps what is true."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.testing import TestRunner


def test_truth_decides() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").filter(lambda v: v).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [0, 1, "", "x", [], [0], None]).run()
    assert [m.value for m in runner.output("m.out")] == [1, "x", [0]]


def test_two_filters_of_one_stream_see_the_same_messages() -> None:
    app = ps.StreamApplication("a")
    source = app.input("m.in")
    source.filter(lambda v: v % 2).send_to(app.output("m.odd"))
    source.filter(lambda v: not v % 2).send_to(app.output("m.even"))
    runner = TestRunner(app, partitions=2).input("m.in", range(10)).run()
    assert sorted(m.value for m in runner.output("m.odd")) == [1, 3, 5, 7, 9]
    assert sorted(m.value for m in runner.output("m.even")) == [0, 2, 4, 6, 8]


def test_an_exception_names_the_operator() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").filter(lambda v: v["missing"], id="only-good")
    with pytest.raises(ps.UserCodeError, match=r"KeyError: 'missing'(.|\n)*`only-good`"):
        TestRunner(app, partitions=1).input("m.in", [{}]).run()
