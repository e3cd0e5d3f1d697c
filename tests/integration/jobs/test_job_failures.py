"""Messages that fail: as dead letters, and as the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock import admin
from penstock.admin.job.status import JobStatus
from tests.support.apps import job_app
from tests.support.jobs.home import Home
from tests.support.jobs.job_runs import finish, start

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def status_of(home: Home) -> JobStatus:
    with admin.open_job("totals", overrides=home.config) as found:
        return admin.status(found)


def test_a_dead_letter_stream_takes_what_fails(spark: SparkSession, home: Home) -> None:
    home.publish(120, seed=8)
    poisoned = home.append(0, [{"key": "k999", "n": 1, "do": "raise"}])
    home.events["events"][0][poisoned] = None
    broken = home.append_raw(1, [b"{not json"])
    home.publish(120, seed=9)
    job = finish(start(home, spark, task_dead_letter_stream="local.dead"))
    assert job.progress is not None
    dead = {(value["partition"], value["offset"]): value for _, _, _, value in home.messages("dead")}
    assert dead.keys() == {(0, poisoned), (1, broken)}
    assert {value["stream"] for value in dead.values()} == {"local.events"}
    assert "event 1 is poisoned" in dead[0, poisoned]["reason"]
    assert dead[1, broken]["value"] == "{not json"
    home.verify()


def test_a_user_error_names_its_message_and_the_fixed_code_goes_on(spark: SparkSession, home: Home) -> None:
    home.publish(300, seed=10)
    offset = home.append(1, [{"key": "k7", "n": 77, "do": "raise"}])
    home.publish(100, seed=11)
    with pytest.raises(ps.UserCodeError) as caught:
        finish(start(home, spark, task_commit_ms=1, job_batch_max_messages=80))
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset) == ("local.events", 1, offset)
    assert "k7" in failed.key
    assert failed.operator == "keys"
    assert "in obey" in failed.traceback
    assert str(caught.value).startswith("Traceback")
    last = home.checkpoints[-1]
    assert last.ended is None
    assert last.batch >= 2
    home.verify_checkpoint(last)
    found = status_of(home)
    assert found.status == "failed"
    assert found.failure is not None
    assert (found.failure.error, found.failure.place) == (failed.reason, failed.place)
    run_id = last.run_id
    finish(start(home, spark, job_app.totals_app(task=job_app.FixedKeyTotals)))
    assert home.checkpoints[-1].run_id == run_id, "a restart of a run that has not ended keeps its id"
    assert (status_of(home).status, status_of(home).failure) == ("not running", None)
    home.verify()


@pytest.mark.slow
def test_a_value_that_does_not_decode_ends_the_run(spark: SparkSession, home: Home) -> None:
    home.publish(100, seed=12)
    offset = home.append_raw(0, [b"\xff\xfe"])
    with pytest.raises(ps.UserCodeError) as caught:
        finish(start(home, spark))
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset) == ("local.events", 0, offset)
    home.verify_checkpoint(home.checkpoints[-1])
