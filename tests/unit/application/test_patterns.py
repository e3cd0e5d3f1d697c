"""peek, branch, reduce and deduplicate."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import TestRunner

KEYED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=30)


def test_peek_sees_each_value_and_changes_none() -> None:
    seen: list[int] = []
    app = ps.StreamApplication("a")
    app.input("m.in").peek(seen.append).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [1, 0, 2]).run()
    assert [message.value for message in runner.output("m.out")] == seen == [1, 0, 2]


@pytest.mark.parametrize("by_column", [False, True])
def test_a_message_goes_to_the_first_branch_that_takes_it(by_column: bool) -> None:
    app = ps.StreamApplication("a")
    if by_column:
        stream: Any = app.input("m.in", value=ps.Columns(pa.schema({"n": pa.int64()})))
        conditions: Any = (ps.col("n") > 10, ps.col("n") > 3)
    else:
        stream, conditions = app.input("m.in"), (lambda row: (row["n"] or 0) > 10, lambda row: (row["n"] or 0) > 3)
    for number, branch in enumerate(stream.branch(*conditions, id="b")):
        branch.send_to(app.output(f"m.out-{number}"))
    rows = [{"n": n} for n in (1, 5, 50, 10, None, 11)]
    runner = TestRunner(app, partitions=1).input("m.in", rows).run()
    found = [[message.value["n"] for message in runner.output(f"m.out-{n}")] for n in range(3)]
    assert found == [[50, 11], [5, 10], [1, None]]
    assert {op.id for op in app.graph().operators} >= {"b-1", "b-2", "b-3"}


@given(messages=KEYED, size=st.sampled_from([1, 3, 100]))
def test_reduce_is_a_running_fold_of_each_key(messages: list[tuple[str, int]], size: int) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").reduce(lambda one, other: [one, other], id="pairs").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", messages).run(batch_messages=size)
    expected, so_far = [], dict[str, Any]()
    for key, value in messages:
        so_far[key] = [so_far[key], value] if key in so_far else value
        expected.append((key, so_far[key]))
    assert [(message.key, message.value) for message in runner.output("m.out")] == expected
    assert runner.commit().crash().restore().store("pairs") == so_far
    runner.close()


def test_reduce_passes_over_messages_without_a_value_and_refuses_those_without_a_key() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").reduce(max).send_to(app.output("m.out"))
    runner = (
        TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [("a", 1), ("a", None), 5, ("a", 2)]).run()
    )
    assert [message.value for message in runner.output("m.out")] == [1, 2]
    assert "has no key" in runner.output("m.dead")[0].value.decode()


@pytest.mark.parametrize("by", [None, lambda value: {"x": value["x"], "y": 0}])
def test_the_first_of_equal_messages_passes_until_it_is_forgotten(by: Any) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").deduplicate("1min", by=by, id="once").send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1)
    rows = [("a", {"x": 1, "n": 1}), ("a", {"x": 1, "n": 2}), ("b", {"x": 1, "n": 3}), ("a", {"x": 2, "n": 4})]
    runner.input("m.in", rows).run().commit().crash().restore()
    passed = [1, 3] if by is None else [1, 3, 4]
    runner.input("m.in", rows[1:2]).run()
    assert [message.value["n"] for message in runner.output("m.out")] == passed
    runner.advance_time(61_000).input("m.in", rows[1:2]).run()
    assert [message.value["n"] for message in runner.output("m.out")] == [*passed, 2]


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda s: s.branch(), "at least one condition"),
        (lambda s: s.deduplicate("often"), "within is a duration"),
        (lambda s: s.peek(_later), "is `async def`"),
        (lambda s: s.peek(None), "the function is None, which cannot be called"),
        (lambda s: s.reduce("x"), "the function is 'x', which cannot be called"),
        (lambda s: s.branch([]), "a condition is \\[\\], which cannot be called"),
        (lambda s: s.map("x"), "the function is 'x', which cannot be called"),
        (lambda s: s.filter(None), "the function is None, which cannot be called"),
        (lambda s: s.reduce(_later), "is `async def`"),
    ],
)
def test_wrong_arguments_of_patterns(declare: Any, why: str) -> None:
    with pytest.raises(ps.ConfigError, match=why):
        declare(ps.StreamApplication("a").input("m.in"))


async def _later(*_: Any) -> None: ...
