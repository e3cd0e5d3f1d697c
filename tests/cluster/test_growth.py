"""A job that runs long holds no more than one that has just begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common import run_side
from benchmarks.soak import growth

pytestmark = pytest.mark.spark


def test_nothing_grows_over_many_small_batches(tmp_path: Path) -> None:
    """Memory, threads and open files of driver, JVM, workers and containers, temporary files, job root and logs.

    A payload that stays allocated adds 0.8 MB a batch to the memory of workers and of containers.
    """
    parameters = {"batch_messages": 200, "message_bytes": 4000, "steps": 7, "step_batches": 20}
    run = run_side("benchmarks.side_soak:soak", {"work": str(tmp_path), **parameters}, tmp_path)
    samples = run.result["samples"]
    assert samples[-1]["batches"] >= 7 * 20
    found = growth(samples)
    assert {g.kind for g in found} == {"driver", "jvm", "spark workers", "containers", "files"}
    assert [str(g) for g in found if g.too_much] == []
