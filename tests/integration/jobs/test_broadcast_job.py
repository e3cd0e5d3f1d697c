"""A broadcast input on Spark: every task reads it once, from a position of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.api.ssp import SystemStreamPartition
from penstock.cli.main import app as penstock
from penstock.driver.show.progress import JobProgress
from penstock.state.reading.reader import read_store
from tests.support.apps import broadcast_app
from tests.support.jobs.home import DEADLINE_S, Home

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RATES = SystemStreamPartition("local", "rates", 0)
Seen = dict[int, dict[str, int]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """`rates` has two partitions as well: the first one is broadcast, the other one is task 1's."""
    made = Home(tmp_path)
    made.create("rates", 2)
    made.config |= {"task.broadcast.inputs": "local.rates#0", "job.batch.max.messages": 12}
    made.publish(40, seed=1)
    add_rates(made, 0, 10)
    add_rates(made, 1, 4)
    return made


def add_rates(home: Home, partition: int, number: int) -> None:
    """Append messages to `rates`."""
    home.append(partition, [{"key": "k1", "n": n} for n in range(number)], stream="rates")


def run(home: Home, spark: SparkSession) -> JobProgress | None:
    """To the end of what is there."""
    job = broadcast_app.seen_app().run(home.config, spark=spark, until="latest")
    assert job.await_termination(DEADLINE_S)
    return job.progress


def command(home: Home, *arguments: str) -> Any:
    """A command on the job's own folders, in JSON."""
    options = [o for key in ("job.root", "systems.local.path") for o in ("-c", f"{key}={home.config[key]}")]
    result = CliRunner().invoke(penstock, [*arguments, *options, "--json"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return json.loads(result.stdout)


def seen(home: Home) -> Seen:
    """Task -> message -> how often it has come there, as of the last checkpoint."""
    found: Seen = {0: {}, 1: {}}
    for task, key, value in read_store(home.loaded(), "seen", None):
        found[task][key.decode()] = json.loads(value)
    return found


def expected(home: Home) -> Seen:
    """Every message once in each of its tasks, by a plain loop."""
    return {
        task: {
            f"{stream}-{partition}-{offset}": 1
            for stream, partitions in home.events.items()
            for partition, events in partitions.items()
            for offset in range(len(events))
            if partition == task or (stream, partition) == ("rates", 0)
        }
        for task in range(2)
    }


def test_every_task_reads_a_broadcast_partition_once_from_its_own_position(spark: SparkSession, home: Home) -> None:
    progress = run(home, spark)
    assert seen(home) == expected(home)
    last = home.checkpoints[-1]
    assert last.task_count == 2
    assert {task: own.get(RATES) for task, own in last.next_offsets.items()} == {0: 10, 1: 10}
    assert [SystemStreamPartition("local", "rates", 1) in own for own in last.next_offsets.values()] == [False, True]
    assert progress is not None
    assert progress.total_input_rows == 40 + 2 * 10 + 4, "a broadcast message counts once for each task"

    add_rates(home, 0, 3)
    again = run(home, spark)
    assert again is not None
    assert again.total_input_rows == 2 * 3, "nothing is read again"
    assert {source.description: source.num_input_rows for source in again.sources} == {
        "local.events": 0,
        "local.rates": 6,
    }
    assert seen(home) == expected(home)

    where = ("--stream", "local.rates", "--partition", "0", "--task", "1", "--offset", "8")
    asked = command(home, "startpoint", "set", "totals", *where)
    assert [(c["task"], c["oldNext"], c["newNext"]) for c in asked["changes"]] == [(1, 13, 8)]
    replayed = run(home, spark)
    assert replayed is not None
    assert replayed.total_input_rows == 5, "task 0 reads nothing again"
    (source,) = (each for each in replayed.sources if each.description == "local.rates")
    assert (source.start_offset["0"], source.end_offset["0"]) == (8, 13), "the smallest position"
    twice = expected(home)
    twice[1] |= {f"rates-0-{offset}": 2 for offset in range(8, 13)}
    assert seen(home) == twice
    assert {task: own.get(RATES) for task, own in home.checkpoints[-1].next_offsets.items()} == {0: 13, 1: 13}
    (inputs,) = (i for i in command(home, "status", "totals", "--no-wait")["inputs"] if i["stream"] == "local.rates")
    assert [(p["partition"], p["nextOffset"], p["lag"]) for p in inputs["partitions"]] == [(0, 13, 0), (1, 4, 0)]
