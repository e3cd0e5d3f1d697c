"""A message that ends its process: it is found by its place, and becomes a dead letter. No other one does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.apps.fragile_app import checked_app, copies_app
from tests.support.jobs.home import Home
from tests.support.jobs.job_runs import finish, start

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


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
