"""Signals to the script of a query, and two scripts of one query: nothing hangs, nothing is left of them, and the next
start goes on."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Literal

import pytest

from penstock.metadata.lease import LeaseState
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from tests.support.faults import Fault
from tests.support.jobs import wait_until
from tests.support.query_home import QueryHome

pytestmark = pytest.mark.spark

Way = Literal["SIGINT", "SIGTERM", "SIGTERM to a script that handles it"]
POINTS = ("init", "source", "processor", "upload.middle", "sink", "idle")
"""What the query does: it starts containers, reads, processes, commits, is in the handler, or waits for rows."""
RUNS = [
    pytest.param(way, point, marks=() if (way, point) == ("SIGINT", "processor") else pytest.mark.slow)
    for way in Way.__args__  # type: ignore[attr-defined]
    for point in POINTS
]


def gave_the_job_back(home: QueryHome) -> bool:
    """Whether the next start on another host need not wait for the lease."""
    store = open_store(str(home.folder / "root"))
    try:
        key = JobPaths("visits", "1").lease
        return LeaseState.decode(store.get(key), key).released
    finally:
        store.close()


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
