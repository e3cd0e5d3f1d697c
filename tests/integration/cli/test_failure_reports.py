"""The command line's report of a job that fails: the cause, where, and what to do, without a stack of Spark's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.processes.python import PENSTOCK, run_python

pytestmark = pytest.mark.spark

APPLICATION = """
import os
import shutil
import penstock as ps


class Fails(ps.StreamTask):
    def init(self, context):
        if os.environ["FAILS"] == "init":
            raise RuntimeError("no database")

    def process(self, envelope, collector, coordinator):
        print("at", envelope.value["n"])
        if os.environ["FAILS"] == "killed":
            os.kill(os.getpid(), 9)
        if os.environ["FAILS"] == "folder":
            shutil.rmtree(os.environ["PENSTOCK_HOME"] + "/jobs/fails-1", ignore_errors=True)
            while True:
                os.kill(os.getppid(), 0)
                __import__("time").sleep(0.1)


app = ps.StreamApplication("fails")
app.input("local.numbers").partition_by(lambda v: "k", key=ps.String()).process(Fails, id="fragile")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fails.py").write_text(APPLICATION)
    (tmp_path / "numbers.jsonl").write_text(json.dumps({"n": 7}))
    for arguments in ("create numbers --partitions 1", "publish numbers --file numbers.jsonl"):
        call(tmp_path, "stream", *arguments.split())
    return tmp_path


def call(folder: Path, *arguments: str, fails: str = "", status: int = 0) -> str:
    environ = {"PENSTOCK_HOME": str(folder / "home"), "FAILS": fails}
    return run_python(*PENSTOCK, *arguments, folder=folder, environ=environ, status=status).stderr


def run(folder: Path, fails: str, **config: object) -> str:
    pairs = {"spark.master": "local[1]", **{key.replace("_", "."): value for key, value in config.items()}}
    options = [word for key, value in pairs.items() for word in ("-c", f"{key}={value}")]
    return call(folder, "run", "fails.py:app", "--until", "latest", *options, fails=fails, status=1)


@pytest.mark.slow
def test_a_container_that_is_killed_again_and_again(folder: Path) -> None:
    error = run(folder, "killed", job_retry_max=1)
    last = error.splitlines()[-1]
    assert "error: 2 failures since the last checkpoint; job.retry.max is 1. The last one: container" in last
    assert "was killed by SIGKILL (9: probably out of memory, or killed by hand)" in last
    assert "at 7" in last, "its last words"
    log = re.search(r"its log: (\S+\.log)", last)
    assert log is not None
    assert Path(log[1]).is_file()
    assert "failure 2" not in error
    (warning,) = [line for line in error.splitlines()[:-1] if "going back to checkpoint 1" in line]
    assert "failure 1 since the last checkpoint, at most 1 are retried" in warning
    assert "was killed by SIGKILL" in warning
    assert not re.search(r"^\s+at (org|java|scala)\.|Traceback", error, re.MULTILINE), error


@pytest.mark.slow
def test_a_failure_in_init(folder: Path) -> None:
    error = run(folder, "init")
    assert "RuntimeError: no database" in error
    assert "error: the application failed in the constructor or `init` of operator `fragile`, task 0" in error
    assert "none" not in error


@pytest.mark.slow
def test_a_job_folder_that_is_deleted(folder: Path) -> None:
    error = run(folder, "folder", job_lease_ms=2000, container_attempt_timeout_ms=3000)
    assert "the folder of this job, or the lease in it, was deleted while it ran" in error
    assert "another driver" not in error
    shutil.rmtree(folder / "home")
