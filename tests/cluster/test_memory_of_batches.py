"""Memory and batches stay bounded with large messages and with many partitions that all have a backlog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import SideRun, run_side

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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
    used = {kind: size // MEGABYTE for kind, size in found.usage.peak.by_kind.items()}
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
    used = {kind: each // MEGABYTE for kind, each in found.usage.peak.by_kind.items()}
    assert used["containers"] < 480, used


def test_two_hundred_partitions_with_a_backlog(tmp_path: Path) -> None:
    """A batch has as many messages as it may in total, not as many of each partition."""
    found = run(tmp_path, partitions=200, messages=30, bytes=1000, config={"job.batch.max.messages": 3000})
    rows = found.result["rows"]
    assert (sum(rows), found.result["written"]) == (6000, 6000)
    assert rows[0] == 200
    assert max(rows) <= 3000
