"""A drain that is stuck, on Spark: the run fails and names in what, and the next start drains."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from examples import folder_system
from penstock import PenstockTimeoutError, SystemStreamPartition, admin
from penstock.checkpoint.log import CheckpointLog
from penstock.drain.wing import DrainProgress
from penstock.driver.job import Job
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.testing.system_contract import append, read_all
from tests.support.apps import stuck_app
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.processes.inspection import containers_here

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TASKS = 2


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    for module in (folder_system, stuck_app):
        cloudpickle.register_pickle_by_value(module)


def waits_for(job: Job, what: str) -> bool:
    drain = job.drain_progress
    return not job.is_active or (drain is not None and what in drain.waits_for)


def read_at(log: CheckpointLog) -> dict[int, int]:
    """The offsets behind what the last checkpoint has read."""
    latest = log.read().latest
    positions = {} if latest is None else latest.next_offsets
    return {ssp.partition: offset for own in positions.values() for ssp, offset in own.items()}


def test_what_is_stuck_is_named_and_the_next_start_drains(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "streams"
    system = stuck_app.StuckSystem("far", folder)
    for stream in ("numbers", "sums"):
        system.admin().create_stream(stream, TASKS)
    for partition in range(TASKS):
        append(
            system,
            SystemStreamPartition("far", "numbers", partition),
            [(0, None, number) for number in (b"1", b"2", b"3")],
        )
    config: dict[str, object] = {
        "job.root": str(tmp_path / "jobs"),
        "job.logged.store.base.dir": str(tmp_path / "state"),
        "systems.local.path": str(tmp_path / "local"),
        "systems.far.samza.factory": "tests.support.apps.stuck_app:StuckSystem",
        "systems.far.folder": str(folder),
        "app.folder": str(folder),
        "task.callback.drain.timeout.ms": 1500,
        "task.commit.ms": 100,
        "task.shutdown.ms": 2000,
    }

    job = stuck_app.stuck().run(config, spark=spark)
    log = CheckpointLog(FileObjectStore(tmp_path / "jobs"), JobPaths("stuck", "1"))
    ends = {partition: end.upcoming for partition, end in system.admin().offsets("numbers").items()}
    wait_until(lambda: read_at(log) == ends, "a checkpoint of all")
    (folder / stuck_app.ON_DRAIN).touch()
    job.drain(wait=False)
    wait_until(lambda: waits_for(job, "operator `pairs` (`on_drain`) in task"), "what it waits for")
    with pytest.raises(PenstockTimeoutError, match=r"operator `pairs` \(`on_drain`\) in task \d, stage 1 has taken"):
        job.await_termination(DEADLINE_S)
    assert job.phase == "failed"
    wait_until(lambda: not containers_here(), "the end of the containers, of which one is stuck")

    (folder / stuck_app.OUTPUT).touch()
    (folder / stuck_app.ON_DRAIN).unlink()
    job = stuck_app.stuck().run(config, spark=spark)
    wait_until(lambda: waits_for(job, "the output `far.sums` to be written"), "what it waits for")
    with pytest.raises(
        PenstockTimeoutError, match=r"the append to the output `far\.sums` has taken [\d,]+ ms; task\.call"
    ):
        job.await_termination(DEADLINE_S)

    (folder / stuck_app.OUTPUT).unlink()
    del config["task.callback.drain.timeout.ms"]  # a busy machine may take as long
    job = stuck_app.stuck().run(config, spark=spark)
    assert job.await_termination(DEADLINE_S)
    assert job.phase == "drained"
    drain = job.drain_progress
    assert isinstance(drain, DrainProgress)
    assert [(stage.names[-1], stage.messages) for stage in drain.stages] == [
        ("numbers", 0),
        ("send_to-1", 0),
        ("far.sums", TASKS),
    ]
    with admin.open_job("stuck", overrides=config) as found:
        status = admin.status(found)
    assert (status.drain.step, status.drain.progress) == ("drained", drain)
    sums = [read_all(system, SystemStreamPartition("far", "sums", partition)) for partition in range(TASKS)]
    assert {message[3] for each in sums for message in each} == {b"6"}
