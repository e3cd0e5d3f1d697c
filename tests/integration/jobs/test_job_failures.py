"""Jobs that fail: what the run says, and messages that end processes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock import admin
from penstock.admin.job.status import JobStatus
from tests.support.apps import job_app
from tests.support.apps.fragile_app import checked_app, copies_app
from tests.support.jobs.home import Home
from tests.support.jobs.job_runs import finish, start

pytestmark = pytest.mark.spark


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


def poisoned(home: Home, how: str, partition: int, key: str = "k999") -> tuple[int, int]:
    offset = home.append(partition, [{"key": key, "n": 1, "do": "die", "how": how}])
    home.events["events"][partition][offset] = None
    return partition, offset


def dead_letters(home: Home) -> dict[tuple[int, int], dict[str, Any]]:
    """By partition and offset; each only once."""
    letters = [value for _, _, _, value in home.messages("dead")]
    found = {(value["partition"], value["offset"]): value for value in letters}
    assert len(found) == len(letters)
    return found


@pytest.mark.parametrize(
    "how", ["segfault", *(pytest.param(how, marks=pytest.mark.slow) for how in ("exit", "memory"))]
)
def test_in_a_container(spark: SparkSession, home: Home, how: str) -> None:
    home.publish(120, seed=8)
    places = {poisoned(home, how, 1)}
    if how != "segfault":
        places.add(poisoned(home, how, 0))
    home.publish(120, seed=9)
    finish(start(home, spark, task_dead_letter_stream="local.dead"))
    found = dead_letters(home)
    assert found.keys() == places
    for place, letter in found.items():
        assert letter["stream"] == "local.events"
        assert letter["operator"] == "keys"
        words = {"exit": "ended with exit status 3", "segfault": "SIGSEGV", "memory": "SIGKILL"}[how]
        assert re.match(f"ProcessEndedError: the process that processed it .*{words}", letter["reason"]), place
    home.verify()


@pytest.mark.slow
@pytest.mark.parametrize("direct", [False, True], ids=["spark", "direct"])
@pytest.mark.parametrize("how", ["exit", "segfault"])
def test_in_a_worker(spark: SparkSession, home: Home, how: str, direct: bool) -> None:
    home.publish(50, seed=8)
    place = poisoned(home, how, 1)
    home.publish(50, seed=9)
    keys: dict[str, Any] = {"job_latency_target_ms": 50} if direct else {}
    finish(start(home, spark, checked_app(), task_dead_letter_stream="local.dead", **keys))
    assert dead_letters(home).keys() == {place}
    assert home.length("checked") == 100


@pytest.mark.slow
def test_only_the_result_of_an_expansion_that_kills_is_set_aside(spark: SparkSession, home: Home) -> None:
    home.publish(20, seed=8)
    place = poisoned(home, "segfault", 0)
    home.publish(20, seed=9)
    finish(start(home, spark, copies_app(), task_dead_letter_stream="local.dead"))
    (letter,) = dead_letters(home).items()
    assert letter[0] == place
    assert '"copy":1' in letter[1]["value"]
    assert home.length("copies") == 3 * 40 + 2


@pytest.mark.slow
def test_without_dead_letters_the_run_ends_and_names_the_message(spark: SparkSession, home: Home) -> None:
    home.publish(120, seed=8)
    partition, offset = poisoned(home, "segfault", 1)
    home.publish(120, seed=9)
    with pytest.raises(ps.PenstockError) as caught:
        finish(start(home, spark, job_retry_max=3))
    named = f"offset {offset} of stream `local.events` partition {partition}"
    assert f"while it processed {named} in task" in str(caught.value)
    assert "set task.dead.letter.stream" in str(caught.value)
