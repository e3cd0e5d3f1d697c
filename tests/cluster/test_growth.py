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


@pytest.mark.slow
def test_nothing_grows_over_many_small_batches_of_a_query(tmp_path: Path) -> None:
    """As above, with timers and a time to live; also the blocks that Spark keeps."""
    parameters = {"steps": 7, "step_batches": 50}
    run = run_side("tests.support.query_growth:batches", {"work": str(tmp_path), **parameters}, tmp_path)
    assert run.result["fired"] > 0
    found = growth(run.result["samples"])
    assert {g.kind for g in found} >= {"driver", "jvm", "containers", "files", "blocks"}
    assert [str(g) for g in found if g.too_much] == []


@pytest.mark.slow
def test_nothing_is_left_of_queries_that_were_stopped(tmp_path: Path) -> None:
    """A query is started and stopped twenty times in one process, and as often one is refused by Spark."""
    run = run_side("tests.support.query_growth:starts", {"work": str(tmp_path), "steps": 20}, tmp_path)
    found = growth(run.result["samples"])
    assert {g.kind for g in found} >= {"driver", "jvm", "files", "blocks"}
    once_each = ("threads", "open_files", "temporary", "local_state")
    left = [g for g in found if g.too_much or (g.figure in once_each and g.late - g.early > g.batches / 2)]
    assert [str(g) for g in left] == []
