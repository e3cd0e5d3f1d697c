"""Starts that are refused, and what they leave as it was."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock as ps
from penstock.application.application import Application
from penstock.cli.main import app as cli
from penstock.job.lease import LeaseHeldError
from tests.support.apps import job_app
from tests.support.jobs.home import Home, same, wait_until
from tests.support.jobs.job_runs import finish, refused, start

pytestmark = pytest.mark.spark

CASES: dict[str, tuple[Callable[[], Application], dict[str, object], str]] = {
    "a store is removed": (lambda: job_app.totals_app(regions=False), {}, "store `regions`.*no longer"),
    "a serde is changed": (lambda: job_app.totals_app(value=ps.String()), {}, "store `totals`.*json.*string"),
    "an operator id is changed": (lambda: job_app.totals_app(key_id="other"), {}, "store `totals`.*keys.*other"),
    "the task count is changed": (job_app.totals_app, {"job.intermediate.stream.partitions": 3}, "2 tasks.*are 3"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_incompatible_application_is_refused(spark: SparkSession, settled: Home, case: str) -> None:
    make, config, message = CASES[case]
    error = refused(settled, spark, make(), **config)
    assert isinstance(error, ps.IncompatibleError)
    assert re.search(message, str(error)), error


@pytest.mark.slow
def test_a_changed_partition_count_of_an_input_is_refused(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    home = settled.copy(tmp_path / "copy")
    shutil.move(tmp_path / "copy" / "streams" / "events", tmp_path / "events")
    home.system.admin().create_stream("events", 3)
    for config in ({}, {"job.intermediate.stream.partitions": 3}):
        error = refused(home, spark, job_app.totals_app(), **config)
        assert isinstance(error, ps.IncompatibleError)
    shutil.rmtree(tmp_path / "copy" / "streams" / "events")
    home.system.admin().create_stream("events", 1)
    error = refused(home, spark, job_app.totals_app(), job_intermediate_stream_partitions=2)
    assert isinstance(error, ps.IncompatibleError)
    assert "`local.events` had 2 partitions" in str(error)
    shutil.rmtree(tmp_path / "copy" / "streams" / "events")
    shutil.move(tmp_path / "events", tmp_path / "copy" / "streams" / "events")
    home.publish(40, seed=21)
    finish(start(home, spark))
    home.verify()


def test_a_stream_that_was_made_anew_is_refused(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    home = settled.copy(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "streams" / "events")
    home.create("events", 2)
    home.publish(10, seed=1)
    error = refused(home, spark, job_app.totals_app())
    assert isinstance(error, ps.IncompatibleError)
    assert "`local.events` was deleted and created again" in str(error)


@pytest.mark.slow
def test_the_job_goes_on_after_what_was_refused(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    home = settled.copy(tmp_path / "copy")
    for make, config, _ in CASES.values():
        refused(home, spark, make(), **config)
    home.publish(60, seed=22)
    finish(start(home, spark))
    home.verify()


@pytest.mark.slow
def test_a_copy_of_the_root_fences_nothing_until_adopted(spark: SparkSession, settled: Home, tmp_path: Path) -> None:
    """The copy reads and writes the original's streams, as one does that was made with `cp -r` for a test."""
    home = settled.copy(tmp_path / "original")
    twin = home.copy(tmp_path / "twin", moved=False)
    streams: dict[str, Any] = {"systems_local_path": home.config["systems.local.path"]}
    lengths = {name: home.length(name) for name in ("totals", "regions")}
    error = refused(twin, spark, job_app.totals_app(), **streams)
    assert isinstance(error, ps.IncompatibleError)
    assert "penstock job adopt totals-1" in str(error)
    assert {name: home.length(name) for name in lengths} == lengths

    adopted = ["job", "adopt", "totals-1", "-c", f"job.root={twin.config['job.root']}"]
    assert CliRunner().invoke(cli, adopted).exit_code == 0
    running = start(home, spark, until=None)
    wait_until(lambda: running.phase == "running", "the original runs")
    home.publish(60, seed=23)
    finish(start(twin, spark, **streams))
    wait_until(
        lambda: running.progress is not None and running.progress.total_input_rows >= 60, "the original reads on"
    )
    running.stop()
    home.verify_ended()
    same(twin.stored("totals"), home.expected()[0], "store totals of the copy")


def test_a_missing_input_is_named(spark: SparkSession, home: Home) -> None:
    error = refused(home, spark, job_app.totals_app(more=("nowhere",)))
    assert isinstance(error, ps.NotFoundError)
    assert "nowhere" in str(error)
    assert "stream create" in str(error)
    assert not home.job_files()
    assert not home.offsets("totals")


def test_a_job_root_that_is_a_file_is_named(spark: SparkSession, home: Home) -> None:
    (home.folder / "jobs").write_text("not a folder")
    with pytest.raises(ps.ConfigError) as caught:
        start(home, spark)
    assert str(home.folder / "jobs") in str(caught.value)
    assert "job.root" in str(caught.value)


def test_a_job_root_that_is_read_only_is_named(spark: SparkSession, home: Home) -> None:
    root = home.folder / "jobs"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(root)], capture_output=True).returncode:
        if os.geteuid() == 0:
            pytest.skip("this root may neither mount nor be refused anything by a folder's mode")
        root.chmod(0o500)
    try:
        with pytest.raises(ps.ConfigError) as caught:
            start(home, spark)
    finally:
        subprocess.run(["umount", str(root)], capture_output=True, check=False)
    assert str(root) in str(caught.value)
    assert "job.root" in str(caught.value)


def test_a_second_copy_is_refused_while_the_first_runs(spark: SparkSession, home: Home) -> None:
    home.publish(50, seed=23)
    job = start(home, spark, until=None, job_lease_ms=1500)
    with pytest.raises(LeaseHeldError) as caught:
        start(home, spark, job_lease_ms=60_000)  # how long it would watch the lease
    assert f"pid {os.getpid()}" in str(caught.value)
    assert socket.gethostname() in str(caught.value)
    wait_until(lambda: job.progress and job.progress.total_input_rows == 50, "the first copy goes on")
    job.stop()
    assert len(home.log.claims) == 1
    home.verify()
