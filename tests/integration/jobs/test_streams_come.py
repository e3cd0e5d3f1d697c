"""A job on Spark whose input is a pattern, while streams are created."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SystemAwayError
from penstock.start.inputs import with_matches
from tests.support.jobs.home import wait_until
from tests.support.jobs.spark_home import SparkHome
from tests.support.processes.inspection import containers_here

pytestmark = pytest.mark.spark


class Count(ps.StreamTask):
    """Counts the words of all streams."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.counts[envelope.key] = count = self.counts.get(envelope.key, 0) + 1
        collector.emit(key=envelope.key, value=count)


def counting_app() -> ps.StreamApplication:
    app = ps.StreamApplication("words")
    app.store("counts", value=ps.Long())
    by_word = app.input("local.words-.*", value=ps.String(), pattern=True).partition_by(str)
    by_word.process(Count, stores=["counts"]).send_to(app.output("local.counts"))
    return app


class Words(SparkHome):
    """The streams of words, and how often each word was put into one."""

    given: Counter[str]

    def put(self, stream: str, *words: str) -> None:
        partitions = self.system.admin().partition_count(stream)
        for number, word in enumerate(words):
            self.append(stream, number % partitions, (None, word.encode()))
        self.given.update(words)

    def all_came(self) -> bool:
        """True if each word was counted once, in order, whatever its stream."""
        came: dict[str, list[int]] = {}
        for word, count, _ in self.read("counts"):
            came.setdefault(word, []).append(count)
        return came == {word: list(range(1, count + 1)) for word, count in self.given.items()}


def away_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does not answer the first time that the job begins again."""
    starts = iter([None, SystemAwayError("no answer"), None, None])

    def matches_now(*arguments: Any) -> Any:
        if (failure := next(starts)) is not None:
            raise failure
        return with_matches(*arguments)

    monkeypatch.setattr("penstock.spark.job.with_matches", matches_now)


def lasting_threads() -> int:
    """Without those that call containers: their pool grows up to its limit, whenever calls overlap."""
    return sum(not thread.name.startswith("container-call_") for thread in threading.enumerate())


def test_a_job_begins_again_with_a_stream(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for name in ("LOOK_SECONDS", "LIST_SECONDS"):
        monkeypatch.setattr(f"penstock.driver.watches.{name}", 0.1)
    away_once(monkeypatch)
    config = {"streams.local.counts.output.guarantee": "exactly-once", "task.commit.ms": 300}
    words = Words(tmp_path, spark, {"counts": 2, "words-1": 2}, config)
    words.given = Counter()
    words.put("words-1", "a", "b", "a")
    with words.start(counting_app()) as job:
        wait_until(words.all_came, "the counts of the first stream")
        run, containers, threads = job.run_id, len(containers_here()), lasting_threads()
        words.put("words-1", "a", "c")
        words.create("words-2", 1)
        words.put("words-2", "b")
        wait_until(words.all_came, "the counts of two streams")
        words.put("words-1", "a", "c")
        words.create("words-3", 2)
        words.put("words-3", "b", "d")
        wait_until(words.all_came, "the counts of three streams")
        assert len(containers_here()) == containers > 0
        wait_until(lambda: lasting_threads() <= threads, "threads that only begin or end to be gone")
        words.put("words-3", "e", "a")
        wait_until(words.all_came, "the counts of the new stream")
        job.drain()
    assert (job.phase, job.run_id) == ("drained", run)
    assert words.all_came()
