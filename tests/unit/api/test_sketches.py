"""Approximate aggregates, compared with exact ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import TestRunner
from tests.support.processes.python import run_python
from tests.support.tools.places import ROOT


def folded(aggregate: ps.Aggregate, parts: list[list[Any]]) -> Any:
    """The result of parts that were stored and merged."""
    whole = None
    for values in parts:
        state = None
        for value in values:
            state = aggregate.add(state, value, 0)
        stored = aggregate.from_json(aggregate.to_json(state))
        whole = stored if whole is None else whole if stored is None else aggregate.merge(whole, stored)
    return aggregate.result(whole)


@given(st.lists(st.lists(st.text(max_size=2) | st.integers() | st.floats() | st.binary(max_size=2), max_size=20)))
def test_few_different_values_are_counted_exactly(parts: list[list[Any]]) -> None:
    values = {value if value == value else "NaN" for values in parts for value in values}
    assert folded(ps.ApproxDistinct(), parts) == len(values)


@pytest.mark.parametrize("count", [10_000, 200_000])
def test_many_different_values_are_counted_within_four_percent(count: int) -> None:
    values = [f"user {n % count}" for n in range(count + count // 3)]
    third = len(values) // 3
    found = folded(ps.ApproxDistinct(), [values[:third], values[third:]])
    assert abs(found - count) < 0.042 * count
    state = None
    for value in values:
        state = ps.ApproxDistinct().add(state, value, 0)
    assert len(ps.ApproxDistinct().to_json(state)) < 6_000


@pytest.mark.parametrize("shape", ["uniform", "exponential", "sorted"])
def test_quantiles_are_within_one_percent_of_their_rank(shape: str) -> None:
    chance = random.Random(7)
    values = [chance.expovariate(1) if shape == "exponential" else chance.random() * 1e6 for _ in range(30_000)]
    if shape == "sorted":
        values.sort()
    shares = [0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0]
    found = folded(ps.ApproxQuantiles(quantiles=shares), [values[:100], values[100:20_000], values[20_000:]])
    ranks = [float(np.mean(np.array(values) <= each)) for each in found]
    assert ranks == pytest.approx(shares, abs=0.01)
    assert (found[0], found[-1]) == (min(values), max(values))


def test_nothing_counts_for_none_and_nan() -> None:
    quantiles = ps.ApproxQuantiles(lambda row: row.get("x"))
    assert folded(quantiles, [[{}, {"x": float("nan")}]]) is None
    assert folded(quantiles, [[{}, {"x": 3}], []]) == [3, 3, 3]
    assert folded(ps.ApproxDistinct(lambda row: row.get("x")), [[{}]]) == 0


def test_results_are_those_of_the_same_messages_after_a_crash() -> None:
    def run(*, crashes: bool) -> list[Any]:
        app = ps.StreamApplication("views")
        views = app.input("local.views", watermark=ps.BoundedOutOfOrderness(0)).partition_by(lambda view: view["page"])
        aggregates = {
            "users": ps.ApproxDistinct(lambda view: view["user"]),
            "ms": ps.ApproxQuantiles(lambda view: view["ms"]),
        }
        panes = views.window(ps.Windows.session(100, aggregates=aggregates))
        _ = panes.map(lambda pane: [pane.key, pane.message]).send_to(app.output("local.out"))
        runner = TestRunner(app)
        for number in range(6):
            some = [{"page": "a", "user": n % 50, "ms": n} for n in range(60 * number, 60 * number + 60)]
            runner.input("local.views", some, timestamp=number * 150 % 400).run()
            if crashes:
                runner.commit().crash().restore()
        runner.advance_watermark(10_000).run()
        found = [message.value for message in runner.output("local.out")]
        runner.close()
        return found

    found = run(crashes=False)
    assert found
    assert all(pane["users"] == 50 for _, pane in found)
    assert found == run(crashes=True)


@pytest.mark.parametrize("quantiles", [[], [1.5], [-0.1], ["0.5"], 0.5, [True]])
def test_quantiles_that_are_none_are_refused(quantiles: Any) -> None:
    with pytest.raises(ConfigError, match=r"ApproxQuantiles\(quantiles=.*: give numbers from 0 to 1"):
        ps.ApproxQuantiles(quantiles=quantiles)


def test_a_value_of_another_type_is_named() -> None:
    with pytest.raises(TypeError, match="counts texts, bytes and numbers, not a value of type list"):
        ps.ApproxDistinct().add(None, [1], 0)


def test_without_the_package_the_extra_is_named() -> None:
    script = """
import sys
sys.modules["datasketches"] = None
import penstock as ps
for make in (ps.ApproxDistinct, ps.ApproxQuantiles):
    try:
        make()
    except ps.ConfigError as error:
        assert "penstock-streams[sketches]" in str(error), error
    else:
        raise AssertionError(make)
"""
    run_python("-c", script, folder=ROOT)
