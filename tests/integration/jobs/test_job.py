"""A run of a job, and the state that the next run finds."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from tests.support.apps import job_app
from tests.support.apps.job_app import add_event, add_region
from tests.support.jobs.home import Home, same, wait_until
from tests.support.jobs.job_runs import finish, start, stop_at_once
from tests.support.tools.cli import call_json

pytestmark = pytest.mark.spark


def test_a_job_runs_to_the_latest_message(settled: Home) -> None:
    first, *_, last = settled.checkpoints
    assert (first.kind_detail, first.batch, last.ended) == ("start", 0, "stopped")
    assert settled.length("totals") == settled.length("regions") == 600
    assert [claim.epoch for claim in settled.log.claims] == [1]


def test_an_endless_job_reads_what_comes_until_penstock_stop_and_the_next_run_replays_nothing(
    spark: SparkSession, home: Home
) -> None:
    home.publish(300, seed=2)
    job = start(home, spark, until=None)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 300, "the first messages")
    assert (job.is_active, job.phase, job.remaining_messages) == (True, "running", None)
    home.publish(200, seed=3)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 500, "the later messages")
    progress = job.last_progress
    assert progress is not None
    assert progress.keys() >= {"id", "runId", "name", "timestamp", "batchId", "numInputRows", "durationMs", "sources"}
    assert (progress["runId"], progress["name"]) == (job.run_id, "totals-1")
    assert progress["durationMs"].keys() >= {"triggerExecution", "addBatch"}
    (source,) = progress["sources"]
    assert source["description"] == "local.events"
    assert source["endOffset"] == source["latestOffset"]
    assert sum(source["endOffset"].values()) == 500
    assert source["numInputRows"] == progress["numInputRows"]
    assert progress["numOutputRows"] == 2 * progress["numInputRows"]
    facts = call_json("stop", job.name, "-c", f"job.root={home.folder / 'jobs'}")
    assert (facts["status"], facts["runId"]) == ("stopped", job.run_id)
    assert finish(job).exception is None
    assert (job.phase, job.is_active) == ("ended", False)
    last = home.checkpoints[-1]
    assert (last.ended, str(last.id)) == ("stopped", job.last_checkpoint)
    assert facts["lastCheckpoint"] == job.last_checkpoint
    home.verify()

    home.publish(50, seed=4)
    again = finish(start(home, spark))
    assert again.run_id != job.run_id
    assert again.progress is not None
    assert again.progress.total_input_rows == 50
    assert home.length("totals") == 550
    assert home.checkpoints[-1].parent is not None
    home.verify()


@pytest.mark.slow
def test_a_task_asks_for_a_commit_and_for_the_end(spark: SparkSession, home: Home) -> None:
    home.append(0, [{"key": "k1", "n": 1}, {"key": "k1", "n": 2, "do": "commit"}])
    job = start(home, spark, until=None, task_commit_ms=0)
    wait_until(lambda: len(home.checkpoints) == 2, "the commit the task asked for")
    assert home.checkpoints[-1].ended is None
    home.append(1, [{"key": "k2", "n": 1, "do": "shutdown"}])
    finish(job)
    home.append(1, [{"key": "k2", "n": 1}])
    last = home.checkpoints[-1]
    assert (len(home.checkpoints), last.ended, last.batch) == (3, "stopped", 2)
    home.verify_checkpoint(last)
    assert home.length("totals") == 3
    finish(start(home, spark))
    home.verify()


@pytest.mark.slow
def test_an_idle_source_at_upcoming_crash_before_its_first_message(spark: SparkSession, home: Home) -> None:
    home.create("more", 2)
    home.publish(100, seed=5)
    home.publish(10, seed=6, stream="more")
    idle = {"streams.local.more.samza.offset.default": "upcoming"}
    app = job_app.totals_app(more=("more",))
    job = app.run({**home.config, **idle}, spark=spark)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 100, "the messages of the other input")
    stop_at_once(job)  # as after a crash, nothing more is written
    everywhere = {SystemStreamPartition("local", s, p) for s in ("events", "more") for p in (0, 1)}
    ends = {p: end.upcoming for p, end in home.offsets("more").items()}
    assert sum(ends.values()) == 10
    assert home.checkpoints[-1].ended is None
    for record in home.checkpoints:
        offsets = {ssp: n for own in record.next_offsets.values() for ssp, n in own.items()}
        assert offsets.keys() == everywhere
        assert {ssp.partition: n for ssp, n in offsets.items() if ssp.stream == "more"} == ends
    for skipped in home.events["more"].values():
        skipped[:] = [None] * len(skipped)
    home.publish(30, seed=7, stream="more", new_keys=True)
    finish(job_app.totals_app(more=("more",)).run({**home.config, **idle}, spark=spark, until="latest"))
    home.verify_ended()


@pytest.mark.slow
def test_a_job_without_state(spark: SparkSession, home: Home) -> None:
    home.publish(200, seed=13)
    finish(start(home, spark, job_app.stateless_app()))
    found = [(partition, value) for partition, _, _, value in home.messages("evens")]
    expected = [(p, event) for p, events in home.published["events"].items() for event in events if event["n"] % 2 == 0]
    assert found == expected
    home.publish(50, seed=14)
    finish(start(home, spark, job_app.stateless_app()))
    assert home.length("evens") == sum(e["n"] % 2 == 0 for events in home.published["events"].values() for e in events)


def test_a_task_application_without_a_shuffle(spark: SparkSession, home: Home) -> None:
    home.create("direct", 2)
    home.publish(100, seed=15)
    home.publish(80, seed=16, stream="direct")
    finish(start(home, spark, job_app.task_app()))
    expected = {
        f"{stream}-{partition}": {"sum": sum(e["n"] for e in events), "count": len(events)}
        for stream, partitions in home.published.items()
        for partition, events in partitions.items()
    }
    same(home.stored("totals"), expected, "store totals")
    same(home.last_values("totals"), expected, "output totals")


@pytest.mark.slow
def test_inputs_that_merge_at_different_depths(spark: SparkSession, home: Home) -> None:
    home.create("direct", 2)
    home.publish(150, seed=17)
    home.publish(150, seed=18, stream="direct")
    finish(start(home, spark, job_app.two_depths_app()))
    by_key: dict[str, Any] = {}
    by_region: dict[str, Any] = {}
    for stream, partitions in home.published.items():
        for event in (e for events in partitions.values() for e in events):
            by_region[event["region"]] = add_region(by_region.get(event["region"]), event)
            if stream == "events":
                by_key[event["key"]] = add_event(by_key.get(event["key"]), event)
    same(home.stored("totals"), by_key, "store totals")
    same(home.stored("regions"), by_region, "store regions")
    same(home.last_values("regions"), by_region, "output regions")


@pytest.mark.slow
def test_a_start_from_an_older_checkpoint(spark: SparkSession, home: Home) -> None:
    home.publish(600, seed=19)
    finish(start(home, spark, task_commit_ms=1))
    checkpoints = home.checkpoints
    older = checkpoints[len(checkpoints) // 2]
    assert 0 < sum(n for own in older.next_offsets.values() for n in own.values()) < 600
    home.publish(60, seed=20)
    app = job_app.totals_app()
    finish(app.run(home.config, spark=spark, until="latest", from_checkpoint=str(older.id)))
    begun = home.checkpoints[len(checkpoints)]
    assert (begun.kind_detail, begun.parent, begun.next_offsets) == ("start", older.id, older.next_offsets)
    assert begun.id > checkpoints[-1].id
    same(home.stored("totals", begun), home.stored("totals", older), "store totals at the start")
    home.verify()
    with pytest.raises(ps.NotFoundError, match="no checkpoint `1-1`"):
        app.run(home.config, spark=spark, from_checkpoint="1-1")
