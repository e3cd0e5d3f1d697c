"""A durable intermediate stream on Spark: stopped with messages in it, refused without it, continued, and truncated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStream
from penstock.checkpoint.streams import STREAMS
from tests.support.apps import counted_app
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
PARTITIONS, MESSAGES, KEYS = 2, 600, 7
BETWEEN = SystemStream("local", "words-by-key")


def counts(home: SparkHome) -> dict[str, list[int]]:
    """By word, every count that came out, in order."""
    found: dict[str, list[int]] = {}
    for word, count, _ in home.read("counts"):
        found.setdefault(word, []).append(count)
    return found


def test_a_stop_with_messages_in_the_stream_and_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    config = {
        "job.batch.max.messages": 20,
        "job.batch.target.ms": 0,
        "task.commit.ms": 200,
        "task.checkpoint.retained": 2,
    }
    home = SparkHome(tmp_path, spark, {"words": PARTITIONS, "counts": PARTITIONS}, config)
    home.spread("words", [f"w{n % KEYS}" for n in range(MESSAGES)])
    job = home.start(counted_app.counted(str(BETWEEN)))
    wait_until(lambda: job.progress is not None and job.progress.batch_id >= 4, "the fourth batch")
    job.stop()
    assert job.await_termination(DEADLINE_S)
    stopped = home.checkpoints("counted")[-1]
    assert 0 < stopped.section(STREAMS).streams[BETWEEN].left() <= 40
    assert stopped.ended == "stopped"

    with pytest.raises(ps.IncompatibleError, match=r"`local.words-by-key` has \d+ messages that were not read yet"):
        home.run(counted_app.counted(None))
    home.run(counted_app.counted(str(BETWEEN)))
    expected = {f"w{key}": len(range(key, MESSAGES, KEYS)) for key in range(KEYS)}
    assert counts(home) == {word: list(range(1, count + 1)) for word, count in expected.items()}

    assert home.checkpoints("counted")[-1].section(STREAMS).streams[BETWEEN].left() == 0
    ends = home.system.admin().offsets("words-by-key")
    assert len(ends) == PARTITIONS
    assert all(end.oldest > 0 for end in ends.values())
    assert (home.system.admin().owner("words-by-key") or "").startswith("job counted-1 ")
