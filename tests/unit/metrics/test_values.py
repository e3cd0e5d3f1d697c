"""The values that an application may give to its metrics."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest

import penstock as ps
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.snapshot import GaugeValue, MetricId, Snapshot
from penstock.objects.open import open_store


@pytest.mark.parametrize(
    ("given", "kept"), [(7, 7), (0.5, 0.5), (np.float64(0.5), 0.5), (np.int32(7), 7.0), (Decimal("0.5"), 0.5)]
)
def test_a_gauge_holds_plain_numbers(given: Any, kept: float) -> None:
    gauge = ps.Gauge()
    gauge.set(given)
    assert (gauge.value, type(gauge.value)) == (kept, type(kept))
    assert ps.Gauge(given).value == kept
    msgspec.msgpack.encode(gauge.read().value)  # as a report does


@pytest.mark.parametrize("wrong", ["7", b"7", None, [7]])
def test_what_is_no_number_is_refused_where_it_is_set(wrong: Any) -> None:
    with pytest.raises(TypeError):
        ps.Gauge().set(wrong)
    with pytest.raises(TypeError):
        ps.Counter().inc(wrong)
    with pytest.raises(TypeError):
        ps.Timer().update(wrong)


def test_counters_and_timers_hold_plain_integers() -> None:
    counter, timer = ps.Counter(), ps.Timer()
    counter.inc(np.int64(3))  # type: ignore[arg-type]
    timer.update(np.int64(5))  # type: ignore[arg-type]
    assert [type(n) for n in (counter.count, timer.total_ns, timer.max_ns)] == [int] * 3
    for function in (counter.inc, timer.update):
        with pytest.raises(TypeError):
            function(0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_gauge_without_a_finite_number_does_not_spoil_what_a_run_shows(odd: float) -> None:
    finite, other = MetricId("job", "user.a", "fine"), MetricId("job", "user.a", "odd")
    shown = ShownRun("r", 1, Snapshot({finite: GaugeValue(2), other: GaugeValue(odd)}), {})
    board = MetricsBoard(open_store("memory://values"), JobPaths("values", "1"))
    assert board.decode(board.encode(shown)).metrics == Snapshot({finite: GaugeValue(2)})
