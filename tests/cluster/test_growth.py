"""Nothing grows over many batches, and large batches fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import SideRun, run_side
from benchmarks.soak import growth
from penstock.host.logs import KEPT_LOGS, KEPT_WORDS

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
    what = "the newest logs of containers with their pages, and the words of the newest drivers that were refused"
    assert samples[-1]["figures"]["files"]["local_state"] <= 2 * KEPT_LOGS + KEPT_WORDS + 10, what
    left = [
        g
        for (_, figure), g in found.items()
        if figure not in {"job_root", "local_state", "log_bytes"}
        and (
            g.too_much if figure == "memory_bytes" else g.late - g.early > LEFT_BY_SPARK.get(figure, 0) * g.batches + 3
        )
    ]
    assert [str(g) for g in left] == []


MEGABYTE = 1 << 20


def run(work: Path, **parameters: Any) -> SideRun:
    """Read a backlog to its end; `config` keys beside the store that all have: one in memory."""
    config = {"stores.counts.factory": "memory", **parameters.pop("config", {})}
    return run_side("tests.support.jobs.large_batches:run", {"work": str(work), "config": config, **parameters}, work)


def test_messages_of_two_megabytes(tmp_path: Path) -> None:
    """A backlog of 400 MB goes through a source, a container and an output. The bound on a batch's bytes is out of the
    way, so that all but the first message are one batch.

    Measured on two cores: the Spark workers have 750 MB at their peak, and 1,440 MB if sources and sinks gather
    everything before they send and write it; a container has 160 MB, which a batch that it kept would make 560."""
    found = run(tmp_path, partitions=2, messages=100, bytes=2_000_000, config={"job.batch.max.bytes": 10**12})
    assert found.result == {"rows": [100, 100], "written": 200}
    used = {kind: size // MEGABYTE for kind, size in found.usage.peak.items()}
    assert used["spark workers"] < 1100, used
    assert used["containers"] < 350, used


@pytest.mark.parametrize(("messages", "size"), [(4000, 20_000), (40, 2_000_000)], ids=["small", "large"])
def test_a_commit_with_much_exactly_once_output(tmp_path: Path, messages: int, size: int) -> None:
    """160 MB wait for one commit, more than outboxes keep in memory, and are published in many chunks.

    Measured on two cores: the containers have 375 MB at their peak, with 480 MB of output 395 MB; with at-least-once
    output 190 MB."""
    once = {"streams.local.out.output.guarantee": "exactly-once", "task.commit.ms": 600_000}
    found = run(tmp_path, partitions=2, messages=messages, bytes=size, config=once, counted=True)
    assert found.result["written"] == 2 * messages
    assert found.result["copies"] == {"2": messages}, "each message of both partitions once"
    used = {kind: each // MEGABYTE for kind, each in found.usage.peak.items()}
    assert used["containers"] < 480, used


def test_two_hundred_partitions_with_a_backlog(tmp_path: Path) -> None:
    """A batch has as many messages as it may in total, not as many of each partition."""
    found = run(tmp_path, partitions=200, messages=30, bytes=1000, config={"job.batch.max.messages": 3000})
    rows = found.result["rows"]
    assert (sum(rows), found.result["written"]) == (6000, 6000)
    assert rows[0] == 200
    assert max(rows) <= 3000
