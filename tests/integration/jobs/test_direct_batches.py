"""Small batches of a job with a latency target go to the containers directly, all others as Spark jobs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.direct import two_ways
from penstock.driver.job import Job
from penstock.metrics.snapshot import CounterValue
from penstock.spark.containers.directory import ContainerDirectory
from tests.support.jobs.home import Home, kill, wait_until
from tests.support.jobs.job_runs import finish, start

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, job_latency_target_ms=50)


def ways(job: Job) -> dict[str, int]:
    """The number of batches that took each way."""
    return {
        metric.name.removeprefix("batches-"): value.count
        for metric, value in job._board.metrics.snapshot().items()
        if metric.name.startswith("batches-") and isinstance(value, CounterValue)
    }


def publish_until(job: Job, home: Home, rows: int, way: str) -> int:
    """Publish a little, again and again, until the last batch took this way. Returns the number of messages."""
    while True:
        home.publish(20, seed=rows)
        rows += 20
        wait_until(lambda: job.progress and job.progress.total_input_rows == rows, f"{rows} messages")  # noqa: B023
        assert job.progress is not None
        if job.progress.way == way:
            return rows


def test_large_batches_alone_go_to_spark(spark: SparkSession, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    job = start(home, spark, until=None)
    publish_until(job, home, 0, "direct")
    monkeypatch.setattr("penstock.direct.two_ways.MOST_MESSAGES", 10)
    home.publish(50, seed=100)
    wait_until(lambda: ways(job).get("spark-large"), "a batch that is too large")
    job.stop()
    assert set(ways(finish(job))) <= {"direct", "spark-start", "spark-large"}
    home.verify()


@pytest.mark.slow
def test_a_direct_batch_starts_without_a_call(spark: SparkSession, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = ContainerDirectory.ask

    def noted(self: ContainerDirectory, call: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(call.name)
        return ask(self, call, *arguments, **options)

    monkeypatch.setattr(ContainerDirectory, "ask", noted)
    job = start(home, spark, until=None)
    rows = publish_until(job, home, 0, "direct")
    starts, ends = asked.count("start-run"), asked.count("end")
    publish_until(job, home, rows, "direct")
    job.stop()
    finish(job)
    assert starts >= 1, "containers without tasks learn of the first run of an epoch"
    assert asked.count("start-run") == starts
    assert asked.count("end") > ends
    home.verify()


def test_a_worker_that_was_killed_between_two_batches_is_replaced(spark: SparkSession, home: Home) -> None:
    job = start(home, spark, until=None)
    rows = publish_until(job, home, 0, "direct")
    (worker,) = (p for p in psutil.Process().children() if "penstock.direct" in p.cmdline())
    assert kill(worker)
    rows = publish_until(job, home, rows, "spark-failure")
    publish_until(job, home, rows, "direct")
    job.stop()
    finish(job)
    assert not [p for p in psutil.Process().children() if "penstock.direct" in p.cmdline()]
    home.verify()


def test_a_broken_run_is_repeated_on_spark(spark: SparkSession, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches are too large for the direct worker, which is found out in the middle of them."""
    monkeypatch.setattr(two_ways, "LIMIT_BYTES", 10)
    job = start(home, spark, until=None)
    rows = publish_until(job, home, 0, "spark-repeat")
    publish_until(job, home, rows, "spark-failure")
    job.stop()
    finish(job)
    home.verify()


@pytest.mark.slow
def test_directly_over_tls_to_an_exactly_once_output(spark: SparkSession, home: Home) -> None:
    home.config |= {"job.container.tls.enabled": True, "streams.local.totals.output.guarantee": "exactly-once"}
    job = start(home, spark, until=None)
    rows = publish_until(job, home, 0, "direct")
    for _ in range(5):
        rows = publish_until(job, home, rows, "direct")
    job.stop()
    finish(job)
    home.verify()
    assert home.length("totals") == rows


LARGE = 100 << 20
MANY = 1_000_000


def pieces(value: bytes) -> list[bytes]:
    """A message as it is; of the message `many`, a million."""
    return [b"x" * 100] * MANY if value == b"many" else [value]


class Sum(ps.StreamTask):
    """Keeps the number and the size of all messages."""

    def init(self, context: ps.TaskContext) -> None:
        self.sums = context.store("sums")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        count, size = self.sums.get(envelope.key, (0, 0))
        self.sums.put(envelope.key, (count + 1, size + len(envelope.value)))


@pytest.mark.slow
def test_a_batch_that_becomes_large_is_run_by_spark(spark: SparkSession, home: Home) -> None:
    """A message is too large, or one becomes a million: that shows once the batch is under way."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    app = ps.StreamApplication("totals")
    app.store("sums", key=ps.String(), value=ps.Json())
    parts = app.input("local.events", value=ps.Bytes()).flat_map(pieces)
    parts.partition_by(lambda piece: str(len(piece)), key=ps.String(), value=ps.Bytes()).process(Sum, stores=["sums"])
    job = start(home, spark, app, until=None)
    sent: list[bytes] = []

    def way_of(message: bytes) -> str:
        home.append_raw(0, [message])
        sent.append(message)
        wait_until(lambda: job.progress and job.progress.total_input_rows == len(sent), repr(message[:6]))
        assert job.progress is not None
        return job.progress.way

    for message in b"many", b"1" * LARGE:
        while way_of(b"little") != "direct":
            pass
        assert way_of(message) == "spark-repeat"
    job.stop()
    finish(job)
    counts = Counter(len(piece) for message in sent for piece in pieces(message))
    stored: dict[str, object] = {**home.stored("sums")}
    assert stored == {str(length): [count, length * count] for length, count in counts.items()}
