"""The benchmark of metrics runs, and counts what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.metrics import main, of_the_fold


def fold(path: Path) -> Path:
    batch = {"duration_ms": {"triggerExecution": 500}}
    first = {"duration_ms": {"triggerExecution": 9000}}
    side = {"cpu_us_per_row": 5.0, "rounds": [{"batches": [first, first, batch, batch]}]}
    path.write_text(json.dumps({"sides": {"penstock": side}}))
    return path


def test_what_the_fold_took(tmp_path: Path) -> None:
    assert of_the_fold(fold(tmp_path / "fold.json")) == (5000.0, 0.5)


def test_the_share_of_metrics(tmp_path: Path) -> None:
    out = tmp_path / "metrics.json"
    assert main(["--repeat", "1", "--times", "10", "--fold", str(fold(tmp_path / "f")), "--json", str(out)]) == 0
    found = json.loads(out.read_bytes())
    parts = {part["part"]: part for part in found["parts"]}
    assert parts["gets of the store, at most"]["per_batch"] == 200_000
    assert parts["pieces of an attempt"]["per_batch"] == pytest.approx(2 * 200_000 / 1024, abs=0.001)
    assert all(part["ns"] > 0 for part in found["parts"])
    total = sum(part["ns_per_message"] for part in found["parts"])
    assert found["total_ns_per_message"] == pytest.approx(total)
    assert found["share"] == pytest.approx(total / 5000)
    driver = parts["ends of batches, in the driver"]
    assert driver["ns_per_message"] == pytest.approx(driver["ns"] / 200_000, rel=0.01)
