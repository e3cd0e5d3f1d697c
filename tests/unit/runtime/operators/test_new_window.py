"""The parts of a new kind of windows: its shape and one class, which the shape names."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import pytest

import penstock as ps
from penstock.api.time.windows import WindowShape
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import StageContext
from penstock.runtime.operators.window import WindowNode
from penstock.runtime.windows.cells import Cell, WindowSlot, key_slot
from penstock.start.fit import order_warnings
from penstock.start.layout import store_layout
from penstock.testing import TestRunner
from tests.support.oracles.stage_batches import OUT, Message, StageBatches


@dataclass(frozen=True, slots=True)
class Terms(WindowShape):
    """Spans of time between given bounds."""

    node = f"{__name__}:TermsNode"
    order_matters = "it is in order that terms are"

    bounds_ms: tuple[int, ...]


class TermsNode(WindowNode):
    """Spans of time between given bounds."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Terms) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._bounds = shape.bounds_ms
        self._open: dict[WindowSlot, Cell] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        number = bisect_right(self._bounds, time_ms)
        slot = WindowSlot(self._bounds[number], self._bounds[number - 1], key_slot(key))
        if self._too_late(slot.end):
            return False
        cell = self._open.get(slot)
        if cell is None:
            cell = self._open[slot] = self._cells.load(slot) or self._cells.new(slot)
        self._add(cell, value, time_ms)
        return True


TERMS = Terms((0, 10, 15, 100))


def terms(**options: Any) -> ps.Window:
    """A stand-in for a method of `Windows`."""
    return replace(ps.Windows.tumbling(1, **options), shape=TERMS)


def shown(pane: ps.WindowPane[Any, Any]) -> list[Any]:
    return [pane.window.start_ms, pane.window.end_ms, pane.message, pane.firing]


def application(window: ps.Window, value: ps.Serde[Any] | None = None) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    app.input("m.in", value=value).window(window, id="w").map(shown).send_to(app.output(OUT))
    return app


def test_it_runs_as_any_other() -> None:
    job = StageBatches(application(terms(fold=(0, lambda total, n: total + n))), "w")
    assert job.run([Message("k", 1, 3), Message("k", 2, 12), Message("k", 3, 9)], 5) == {}
    job.restart()
    assert job.task.next_due() == {"w": (10, None)}
    sent = job.run([Message("k", 4, 14), Message("j", 5, 99)], 15)
    assert [value for _, value, _ in sent[OUT]] == [[0, 10, 4, "on-time"], [10, 15, 6, "on-time"]]
    assert job.task.next_due() == {"w": (100, None)}
    job.close()


def test_its_aggregates_of_rows() -> None:
    """They are computed one message at a time, because the shape has no form by column."""
    pa = pytest.importorskip("pyarrow")
    rows = ps.Columns(pa.schema([("n", pa.int64())]))
    app = application(terms(aggregates={"sum": ps.Sum(ps.col("n"))}), rows)
    runner = TestRunner(app, partitions=1)
    for time_ms in (3, 12, 14):
        runner.input("m.in", [("k", {"n": time_ms})], timestamp=time_ms)
    found = [message.value for message in runner.run().end_inputs().output(OUT)]
    assert found == [[0, 10, {"sum": 3}, "on-time"], [10, 15, {"sum": 26}, "on-time"]]


def test_whoever_plans_asks_the_shape() -> None:
    graph = application(terms()).graph()
    assert "Terms(bounds_ms=(0,10,15,100)):event:messages(json):string" in store_layout(graph)["w.window"]
    (warning,) = order_warnings(graph, lambda _: False)
    assert "because it is in order that terms are" in warning
