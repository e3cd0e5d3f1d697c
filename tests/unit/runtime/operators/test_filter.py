"""filter: keeps what is true."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize("after", [False, True], ids=["a column", "emitted"])
def test_a_result_that_has_not_run_is_not_true(after: bool) -> None:
    async def asked() -> bool:
        return False

    class Emits(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=envelope.key, value=envelope.value)

    app = ps.StreamApplication("job")
    stream: ps.MessageStream[Any] = app.input("m.in")
    (stream.process(Emits) if after else stream).filter(lambda value: value or asked(), id="keep")
    with pytest.raises(ps.UserCodeError) as raised:
        TestRunner(app, partitions=1).input("m.in", [5, 0]).run()
    assert (raised.value.failed.operator, raised.value.failed.offset) == ("keep", 1)
    assert "the function of the filter returned a coroutine" in raised.value.failed.reason
