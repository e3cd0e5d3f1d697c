"""A durable intermediate stream on Spark: stopped with messages in it, refused without it, continued, and truncated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.intermediate import STREAMS
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.apps import counted_app
from tests.support.jobs.home import DEADLINE_S, wait_until

pytestmark = pytest.mark.spark
PARTITIONS, MESSAGES, KEYS = 2, 600, 7
BETWEEN = SystemStream("local", "words-by-key")


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(counted_app)


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 20,
            "job.batch.max.messages": 20,
            "job.batch.target.ms": 0,
            "task.commit.ms": 200,
            "task.checkpoint.retained": 2,
        }
        self.system = LocalSystem("local", str(folder / "streams"))
        for stream in ("words", "counts"):
            self.system.admin().create_stream(stream, PARTITIONS)
        writer = self.system.writer(None)
        for partition in range(PARTITIONS):
            records = [(5, None, json.dumps(f"w{n % KEYS}").encode()) for n in range(partition, MESSAGES, PARTITIONS)]
            writer.append(SystemStreamPartition("local", "words", partition), records)

    def counts(self) -> dict[str, list[int]]:
        """By word, every count that came out, in order."""
        found: dict[str, list[int]] = {}
        for partition, ends in self.system.admin().offsets("counts").items():
            ssp = SystemStreamPartition("local", "counts", partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                for _, _, key, value, *_ in chunk:
                    found.setdefault((key or b"").decode(), []).append(json.loads(value or b""))
        return found

    @property
    def last(self) -> CheckpointRecord:
        return CheckpointLog(FileObjectStore(self.folder / "jobs"), JobPaths("counted", "1")).read().checkpoints[-1]


def test_a_stop_with_messages_in_the_stream_and_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    job = counted_app.counted(str(BETWEEN)).run(home.config, spark=spark)
    wait_until(lambda: job.progress is not None and job.progress.batch_id >= 4, "the fourth batch")
    job.stop()
    assert job.await_termination(DEADLINE_S)
    stopped = home.last
    assert 0 < stopped.section(STREAMS).streams[BETWEEN].left() <= 40
    assert stopped.ended == "stopped"

    with pytest.raises(ps.IncompatibleError, match=r"`local.words-by-key` has \d+ messages that were not read yet"):
        counted_app.counted(None).run(home.config, spark=spark, until="latest")
    again = counted_app.counted(str(BETWEEN)).run(home.config, spark=spark, until="latest")
    assert again.await_termination(DEADLINE_S)
    expected = {f"w{key}": len(range(key, MESSAGES, KEYS)) for key in range(KEYS)}
    assert home.counts() == {word: list(range(1, count + 1)) for word, count in expected.items()}

    assert home.last.section(STREAMS).streams[BETWEEN].left() == 0
    ends = home.system.admin().offsets("words-by-key")
    assert len(ends) == PARTITIONS
    assert all(end.oldest > 0 for end in ends.values())
    assert (home.system.admin().owner("words-by-key") or "").startswith("job counted-1 ")
