"""Snapshots of the changelog files backend in a real job: what a clean stop leaves, and what is fallen back to."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.driver.job import Job
from penstock.state.backends.changelog_files.versions import ChangelogMarker
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home, wait_until

pytestmark = pytest.mark.spark


def run(home: Home, spark: SparkSession, **config: object) -> Job:
    """Run the job over everything that was published."""
    given = {key.replace("__", "-").replace("_", "."): value for key, value in config.items()}
    job = job_app.totals_app().run({**home.config, **given}, spark=spark, until="latest")
    job.await_termination(DEADLINE_S)
    return job


def files(home: Home, pattern: str) -> list[Path]:
    """Files of the backend, of all stores and tasks."""
    return sorted((home.folder / "jobs").glob(f"*/state/*/*/{pattern}"))


def markers(home: Home) -> dict[str, ChangelogMarker]:
    """The markers of the last checkpoint's stores `totals` and `regions`, by store and task."""
    from penstock.checkpoint.task_versions import markers_of as of_task

    last = home.checkpoints[-1]
    return {
        f"{store}/{task}": ChangelogMarker.parse(text)
        for task in last.tasks
        for store, text in of_task(last, task)["changelog-files"].items()
    }


def test_a_clean_stop_leaves_a_snapshot_and_no_delta_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(600)
    run(home, spark)
    made = {(path.parent.parent.name, path.parent.name): path.name for path in files(home, "*.zip")}
    assert {f"{store}/{task}": name for (store, task), name in made.items()} == {
        place: f"{marker.version}.{marker.epoch}.zip" for place, marker in markers(home).items() if marker.version
    }
    for delta in files(home, "*.delta"):
        delta.unlink()
    home.publish(200, seed=2)
    run(home, spark)
    home.verify_ended()


@pytest.mark.slow
def test_a_broken_snapshot_is_told_and_older_deltas_are_used(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path)
    home.publish(600)
    run(home, spark)
    broken = files(home, "*.zip")
    for snapshot in broken:
        snapshot.write_bytes(snapshot.read_bytes()[:-10])
    home.publish(200, seed=2)
    with caplog.at_level(logging.ERROR, "penstock"):
        run(home, spark)
    told = [record.getMessage() for record in caplog.records]
    for snapshot in broken:
        name = str(snapshot.relative_to(home.folder / "jobs"))
        assert any(name in text and "is damaged" in text for text in told) or "more restores" in "".join(told)
    home.verify_ended()


@pytest.mark.slow
def test_snapshots_are_made_while_the_job_runs_and_old_deltas_go(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path, state_snapshot_interval_commits=2, task_commit_ms=1, task_checkpoint_retained=1)
    home.publish(2400)
    job = run(home, spark, job_batch_max_messages=100)
    assert job.progress is not None
    assert job.progress.batch_id >= 20
    home.verify_ended()
    for place, marker in markers(home).items():
        if marker.version > 10:
            assert len(marker.snapshots) == 2, place
            first = marker.lineage[0][1] if marker.lineage else marker.version
            assert first > 1, place
    versions = {place: marker.version for place, marker in markers(home).items()}
    wait_until(lambda: len(files(home, "*.delta")) < sum(versions.values()) / 2, "old deltas to go")
    home.publish(100, seed=2)
    run(home, spark)
    home.verify_ended()


@pytest.mark.slow
def test_the_changelog_is_turned_off_and_on_again(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(300)
    run(home, spark, state_changelog_enabled=False)
    assert not files(home, "*.delta")
    home.verify()
    home.publish(300, seed=2)
    run(home, spark)
    assert files(home, "*.delta")
    home.publish(300, seed=3)
    run(home, spark, state_changelog_enabled=False)
    home.verify()


@pytest.mark.slow
def test_with_host_affinity_a_start_needs_the_copies_alone(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config["job.host-affinity.enabled"] = True
    home.publish(600)
    run(home, spark)
    for path in files(home, "*.delta") + files(home, "*.zip"):
        path.unlink()
    home.publish(200, seed=2)
    run(home, spark)
    home.verify_ended()
