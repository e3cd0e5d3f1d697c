"""`penstock stop`, and `penstock status` of all jobs and of a driver that does not respond."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.host.posix import process_start
from penstock.job.commands import StopRequests, StopRequestWatch
from penstock.job.lease import Lease, LeaseHolder, LeaseState, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.tools.cli import call, call_json
from tests.support.tools.leases import LONG_MS, EagerKeeper

PATHS = JobPaths("flights", "1")
DEADLINE_S = 60.0
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def objects(home: Path) -> FileObjectStore:
    return FileObjectStore(home / "jobs")


def begin(objects: FileObjectStore, paths: JobPaths = PATHS, run_id: str = "run-1", lease_ms: int = 300) -> Lease:
    """A driver's lease and claim."""
    CheckpointLog(objects, paths).claim(run_id)
    holder = LeaseHolder.of_this_process(run_id)
    return acquire(objects, paths, holder, lease_ms, time.monotonic() + DEADLINE_S)


class Driver:
    """A driver that gives the lease back once it is asked to stop."""

    def __init__(self, objects: FileObjectStore) -> None:
        self.lease = begin(objects, lease_ms=LONG_MS)
        self.keeper = EagerKeeper(self.lease)
        self.keeper.start()
        self.asked = threading.Event()
        self.watch = StopRequestWatch(StopRequests(objects, PATHS), self.lease.state.token, self.asked.set)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        if self.asked.wait(DEADLINE_S):
            self.end()

    def end(self) -> None:
        self.watch.close()
        self.keeper.stop(DEADLINE_S)
        self.lease.release()


@pytest.fixture
def driver(objects: FileObjectStore) -> Iterator[Driver]:
    driver = Driver(objects)
    yield driver
    driver.asked.set()
    driver.thread.join(DEADLINE_S)


def test_a_running_job_is_asked_and_its_end_is_awaited(driver: Driver, objects: FileObjectStore) -> None:
    found = call_json("stop", "flights")
    assert (found["job"], found["status"], found["runId"]) == ("flights-1", "stopped", "run-1")
    assert driver.asked.is_set()
    driver.thread.join(DEADLINE_S)
    assert objects.list(PATHS.metadata_folder("stop")) == []
    assert "is not running" in call("stop", "flights")[0]


def test_it_need_not_be_awaited(driver: Driver) -> None:
    assert call_json("stop", "flights", "--no-wait")["status"] == "asked"
    assert driver.asked.wait(DEADLINE_S)


def test_a_run_that_does_not_end_is_reported(objects: FileObjectStore) -> None:
    keeper = EagerKeeper(begin(objects, lease_ms=LONG_MS))
    keeper.start()
    error = call("stop", "flights", "--timeout", "0.3", status=1)[1]
    assert "run `run-1`, pid" in error
    assert "has not ended within 0.3 s" in error
    keeper.stop(DEADLINE_S)


def test_a_request_for_another_run_stops_nobody(objects: FileObjectStore) -> None:
    requests = StopRequests(objects, PATHS)
    older = begin(objects)
    assert requests.ask(older.state.token, "somebody")
    assert not requests.ask(older.state.token, "somebody else")
    older.release()
    newer = begin(objects)  # of the same run, as after a crash
    assert requests.asked_by(newer.state.token) is None
    assert requests.asked_by(older.state.token) == "somebody"


def test_a_job_that_does_not_run_is_not_asked(objects: FileObjectStore) -> None:
    begin(objects).release()
    assert call_json("stop", "flights")["status"] == "not running"
    assert objects.list(PATHS.metadata_folder("stop")) == []


def test_status_without_a_name_lists_every_job(objects: FileObjectStore) -> None:
    assert call("status")[0].splitlines()[-1] == "none"
    for name in ("flights", "orders-eu"):
        begin(objects, JobPaths(name, "1")).release()
    begin(objects, JobPaths("broken", "2")).release()
    objects.delete("broken-2/checkpoints/00000000000000000000.json")
    objects.put_if_absent("broken-2/checkpoints/00000000000000000000.json", b"{")
    (objects.root / "lost+found").mkdir()
    text, error = call("status")
    assert [line.split()[:3] for line in text.splitlines()[1:] if "-" in line and "─" not in line] == [
        ["broken-2", "cannot", "be"],
        ["flights-1", "not", "running"],
        ["orders-eu-1", "not", "running"],
    ]
    assert "job broken-2" in error
    found = call_json("status")
    assert [one["job"] for one in found] == ["broken-2", "flights-1", "orders-eu-1"]
    assert found[1]["status"] == "not running"
    assert "problem" in found[0]


SLEEPER = "import sys, time; print('up', flush=True); time.sleep(600)"


def test_a_stopped_driver_does_not_respond(objects: FileObjectStore) -> None:
    lease = begin(objects, lease_ms=60_000)
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            be(objects, lease, process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
            facts = call_json("status", "flights")
            assert facts["status"] == "not responding"
            assert f"process {process.pid} is stopped (SIGSTOP" in facts["reason"]
            assert f"kill -CONT {process.pid}" in call("status", "flights")[0].replace("\n", " ")
        finally:
            process.kill()
    facts = call_json("status", "flights")
    assert facts["status"] == "failed"
    assert "its driver is gone, its last sign of life was at" in facts["failure"]["error"]


def test_a_driver_that_lives_and_does_not_renew_does_not_respond(objects: FileObjectStore) -> None:
    begin(objects, lease_ms=200)
    facts = call_json("status", "flights")
    assert facts["status"] == "not responding"
    assert "has not renewed the lease for 0.2 s" in facts["reason"]


def be(objects: FileObjectStore, lease: Lease, pid: int) -> None:
    """Write the lease as that of another process of this host."""
    holder = replace(lease.state.holder, pid=pid, process_start=process_start(pid) or "")
    data, tag = objects.get_with_tag(PATHS.lease)
    state = replace(LeaseState.decode(data, PATHS.lease), holder=holder)
    assert objects.put_if_match(PATHS.lease, state.encode(), tag)
