"""Signals to the script of a query, and two scripts of one query: nothing hangs, nothing is left of them, and the next
start goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from penstock.job.lease import LeaseState
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from tests.support.faults.plan import Fault, Faults
from tests.support.jobs.home import wait_until
from tests.support.jobs.query_home import LOCAL, QueryHome, QueryRun
from tests.support.stores.spark_state import golden_location
from tests.support.tools.places import ROOT

pytestmark = pytest.mark.spark

Way = Literal["SIGINT", "SIGTERM", "SIGTERM to a script that handles it"]
POINTS = ("init", "source", "processor", "upload.middle", "sink", "idle")
"""Steps of the query: it starts containers, reads, processes, commits, is in the handler, or waits for rows."""
RUNS = [(way, point) for way in Way.__args__ for point in POINTS]  # type: ignore[attr-defined]


def gave_the_job_back(home: QueryHome) -> bool:
    """True if the next start on another host need not wait for the lease."""
    store = open_store(str(home.folder / "root"))
    try:
        key = JobPaths("visits", "1").lease
        return LeaseState.decode(store.get(key), key).released
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("way", "point"), RUNS)
def test_a_signal_ends_a_script_at_once(tmp_path: Path, way: Way, point: str) -> None:
    home = QueryHome(tmp_path)
    home.publish()
    if point != "idle":
        home.faults.plan(Fault("blocks", point, "block"))  # longer than `ended` waits
    with home.running(trigger={"processingTime": "0 seconds"}, exits_on_sigterm="handles" in way) as run:
        wait_until(lambda: home.faults.is_reached("blocks") or home.reached().committed == 0, point)
        assert run.processes("penstock.container")
        if way == "SIGINT":
            os.killpg(run.process.pid, signal.SIGINT)  # as a terminal sends it
        else:
            run.process.terminate()
        status = run.ended()
        assert status == {"SIGINT": -signal.SIGINT, "SIGTERM": -signal.SIGTERM}.get(way, 128 + signal.SIGTERM)
        assert "did not end cleanly" not in run.log
        assert gave_the_job_back(home) == (way != "SIGTERM")
    home.faults.plan()
    home.publish()
    assert home.run() == 0
    home.verify()


@pytest.mark.slow
def test_of_two_scripts_that_start_at_the_same_moment_one_runs(tmp_path: Path) -> None:
    """Spark may find out first, because both have the same checkpoint location."""
    home = QueryHome(tmp_path)
    home.publish()
    home.faults.plan(Fault("blocks", "handler.before", "block"))
    with home.running() as one, home.running() as other:
        wait_until(lambda: any(run.process.poll() is not None for run in (one, other)), "the end of one")
        loser, winner = sorted((one, other), key=lambda run: run.process.poll() is None)
        assert loser.process.wait() == 1
        assert re.search(r"this job is run by|CONCURRENT_STREAM_LOG_UPDATE|concurrently using", loser.log), loser.log
        assert winner.process.poll() is None
        home.faults.open()
        assert winner.ended() == 0
    home.verify()


WITH_FILES = """
import json, sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock.spark as pss
from tests.support.oracles.counted_visits import OUTPUT, CountVisits
from tests.support.jobs.fault_jobs import faulty
from tests.unit.spark.takeover.test_takeover import Reads

folder = Path(sys.argv[1])
spark = SparkSession.builder.config(map=json.loads(sys.argv[2])).getOrCreate()


def start(rows, name, handle, **arguments):
    made = pss.transform_with_state(
        spark.readStream.schema(rows).parquet(str(folder / "in")),
        key=rows.split()[0],
        time_mode="ProcessingTime",
        root=str(folder / name),
        config={"stores.backup.factories": faulty("changelog-files")},
        **arguments,
    )
    return made.for_each_batch(handle).option("checkpointLocation", str(folder / f"{name}-location")).start()


started = folder / "started"
start("user STRING", "visits", lambda df, number: started.touch(), processor=CountVisits(), output=OUTPUT)
while not started.exists():
    spark.streams.awaitAnyTermination(1)
start("k STRING", "taken", print, processor=Reads(), output="k STRING, said STRING", import_state=True)
"""
"""A program with a query with timers, and one whose state is being taken over."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_a_signal_ends_leaves_no_files(tmp_path: Path, number: signal.Signals) -> None:
    faults = Faults(tmp_path / "faults")
    faults.plan(Fault("blocks", "put.begin", "block"))
    for name in ("in", "tmp", "scratch"):
        (tmp_path / name).mkdir()
    golden_location("tws-lz4", tmp_path / "taken-location")
    conf = {**LOCAL, "spark.ui.enabled": "false", "spark.local.dir": str(tmp_path / "scratch")}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_FILES, str(tmp_path), json.dumps(conf)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PENSTOCK_TEST": str(tmp_path),
                "TMPDIR": str(tmp_path / "tmp"),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    run = QueryRun(process, str(tmp_path), log)
    try:
        wait_until(lambda: faults.is_reached("blocks") or process.poll() is not None, "the upload of the state")
        kept = [each for name in ("heartbeat", "read") for each in tmp_path.rglob(f"penstock-{name}-*")]
        assert len(kept) >= 2, run.log
        process.send_signal(number)
        assert run.ended() == -number
    finally:
        run.clean_up()
    assert not [each for each in kept if each.exists()], "Spark's JVM ends after the program, and removes them"
    assert not list((tmp_path / "scratch").iterdir())
