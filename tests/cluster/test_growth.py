"""A job that runs long holds no more than one that has just begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import run_side
from benchmarks.soak import growth

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_nothing_grows_over_many_small_batches(tmp_path: Path) -> None:
    """Memory, threads and open files of driver, JVM, workers and containers, temporary files, job root and logs.

    A payload that stays allocated adds 0.8 MB a batch to the memory of workers and of containers.
    """
    parameters = {"batch_messages": 200, "message_bytes": 4000, "steps": 7, "step_batches": 20}
    run = run_side("benchmarks.soak:soak", {"work": str(tmp_path), **parameters}, tmp_path)
    samples = run.result["samples"]
    assert samples[-1]["batches"] >= 7 * 20
    found = growth(samples)
    assert {g.kind for g in found} == {"driver", "jvm", "spark workers", "containers", "files"}
    assert [str(g) for g in found if g.too_much] == []


def test_nothing_grows_over_many_small_batches_of_a_query(tmp_path: Path) -> None:
    """As above, with timers and a time to live; also the blocks that Spark keeps."""
    parameters = {"steps": 7, "step_batches": 50}
    run = run_side("tests.support.jobs.query_growth:batches", {"work": str(tmp_path), **parameters}, tmp_path)
    assert run.result["fired"] > 0
    found = growth(run.result["samples"])
    assert {g.kind for g in found} >= {"driver", "jvm", "containers", "files", "blocks"}
    assert [str(g) for g in found if g.too_much] == []


LEFT_BY_SPARK = {"threads": 1, "open_files": 4, "spark": 2}
"""The start of a query leaves until the session ends: a connection that py4j keeps for the query's thread, which is a
thread in Python and a socket on both sides; and of the process that asks a Python data source, a thread that watches
over it, a selector and a socket. The two files in Spark's scratch folder are those of the run's containers."""


def test_nothing_else_is_left_of_queries_that_were_stopped(tmp_path: Path) -> None:
    """A query is started and stopped twenty times in one process, and as often one is refused by Spark."""
    run = run_side("tests.support.jobs.query_growth:starts", {"work": str(tmp_path), "steps": 20}, tmp_path)
    samples = run.result["samples"]
    found = {(g.kind, g.figure): g for g in growth(samples)}
    assert {kind for kind, _ in found} >= {"driver", "jvm", "files", "blocks"}
    assert samples[-1]["figures"]["files"]["job_root"] < 300, (
        "as many checkpoints as are retained, and a claim of each start"
    )
    assert samples[-1]["figures"]["files"]["local_state"] < 30, "the newest logs of containers"
    left = [
        g
        for (_, figure), g in found.items()
        if figure not in {"job_root", "local_state", "log_bytes"}
        and (
            g.too_much if figure == "memory_bytes" else g.late - g.early > LEFT_BY_SPARK.get(figure, 0) * g.batches + 3
        )
    ]
    assert [str(g) for g in left] == []
