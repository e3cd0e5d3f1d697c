"""Two object stores in one commit: a state backend with a root that is not the job's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import IncompatibleError
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, LOCK, Home, same

pytestmark = pytest.mark.spark
ROOT = "state.backends.blob.root"


def run(home: Home, spark: SparkSession) -> None:
    job = job_app.totals_app(regions=False).run(home.config, spark=spark, until="latest")
    assert job.await_termination(DEADLINE_S)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]


def penstock(home: Home, *arguments: str) -> str:
    keys = ("job.root", "systems.local.path", "job.logged.store.base.dir", ROOT)
    options = [option for key in keys for option in ("-c", f"{key}={home.config[key]}")]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_commit_writes_to_two_object_stores_and_either_one_restores_it(spark: SparkSession, tmp_path: Path) -> None:
    home, second = Home(tmp_path / "home"), tmp_path / "second"
    home.config |= {"stores.backup.factories": "changelog-files,blob", ROOT: str(second)}
    home.publish(60)
    run(home, spark)
    (folder,) = second.iterdir()
    job_folder = Path(str(home.config["job.root"]).removeprefix("file://")) / folder.name
    assert list(folder.rglob("*.index"))
    assert not list(job_folder.rglob("*.index")), "blobs are in the second root alone"
    assert list(job_folder.rglob("*.delta"))
    assert not list(folder.rglob("*.delta"))
    assert "the same" in penstock(home, "state", "verify", folder.name)
    assert "blob" in penstock(home, "state", "list", folder.name)

    shutil.rmtree(job_folder / "state")  # what the first object store held is lost
    home.publish(20, seed=2)
    run(home, spark)
    same(home.stored("totals"), home.expected()[0], "restored from the second root")

    shutil.rmtree(folder / "state")  # and now the other one
    home.publish(20, seed=3)
    run(home, spark)
    same(home.stored("totals"), home.expected()[0], "restored from the job's root")

    other = Home(tmp_path / "other")
    other.config |= {"stores.backup.factories": "changelog-files,blob", ROOT: str(second)}
    other.publish(10)
    before = sorted(files(second))
    with pytest.raises(IncompatibleError, match=f"{ROOT}=.* holds the state of another job"):
        run(other, spark)
    assert sorted(files(second)) == before

    penstock(home, "job", "delete", folder.name, "--yes")
    assert files(folder) == []
    assert [path.parent.name for path in files(job_folder)] == ["audit"]
