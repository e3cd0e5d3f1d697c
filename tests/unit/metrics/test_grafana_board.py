"""The board for Grafana asks only for what a job's endpoint has."""

from __future__ import annotations

import json
import re

import pytest

from penstock.metrics.prometheus import JobCollector
from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue, Value
from tests.support.oracles.metrics_page import PAGE, documented
from tests.support.tools.places import ROOT

BOARD = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text("utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
VALUES: dict[str, Value] = {"counter": CounterValue(1), "gauge": GaugeValue(1), "timer": TimerValue(1, 1, 1)}
SUBJECTS = {"stage": "1", "stream": "local.clicks", "operator": "sum", "store": "totals", "backend": "blob"}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each sample, by its name, of a job with every metric of the documentation."""
    metrics = {}
    for kind, name, form in documented(PAGE.read_text("utf-8")):
        group = f"{kind}.{SUBJECTS[kind]}" if kind in SUBJECTS else kind
        metrics[MetricId("job" if kind == "job" else "Partition 0", group, name)] = VALUES[form]
    families = JobCollector("clicks-1", lambda: Snapshot(metrics)).collect()
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_something(query: str, exported: dict[str, set[str]]) -> None:
    names = re.findall(r"penstock_\w+", query)
    assert names
    assert set(names) <= exported.keys()
    by = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(",")}
    assert all(by <= exported[name] for name in names)


def test_panels_have_places_of_their_own() -> None:
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
