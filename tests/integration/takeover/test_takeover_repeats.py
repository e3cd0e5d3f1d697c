"""Spark repeats a task that has backed up state which is being taken over: nothing is lost, and nothing doubled."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from tests.integration.takeover import test_query_import
from tests.integration.takeover.test_query_import import World
from tests.support.faults.plan import Fault, Faults
from tests.support.jobs.fault_jobs import faulty
from tests.support.oracles.beside_pyspark import KEYS
from tests.support.processes.spark_sessions import Sessions

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    """A session that repeats tasks, as any cluster does."""
    cloudpickle.register_pickle_by_value(test_query_import)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYSPARK_PYTHON", sys.executable)
        session = sessions.get({"spark.master": "local[2,4]"})
        for key, value in {**KEYS, "spark.sql.session.timeZone": "UTC"}.items():
            session.conf.set(key, value)
        yield session
        for key in KEYS:
            session.conf.unset(key)


@pytest.mark.parametrize("backend", ["changelog-files", "blob"])
def test_a_worker_dies_behind_its_backup(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    """The second backup has the same entries. An engine may write them to other files, which the blob backend refuses:
    then the next start takes the state over."""
    world, faults = World(spark, tmp_path), Faults.of_root(str(tmp_path / "root"))
    world.config = {f"stores.{each}.factories": faulty(backend) for each in ("backup", "restore")}
    world.feed(0, 20)
    world.in_pyspark()
    world.feed(20, 40)
    faults.plan(Fault("dies", "upload.end", "kill", skip=5))
    try:
        world.in_penstock(import_state=True)
    except PenstockError as refused:
        if re.search(r"nothing was changed: .*index` exists with other content", str(refused)) is None:
            raise
        world.in_penstock(import_state=True)
    assert faults.left() == []
    world.check(20, 40, 1, waiting=4)
