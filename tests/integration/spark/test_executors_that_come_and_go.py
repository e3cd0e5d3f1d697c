"""Spark's dynamic allocation: the executors of containers stay, and others come and go."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.spark.session.executors import LOCAL_ID, KeptExecutors, live_executors, rdd_on
from tests.support.jobs.home import Home, kill, wait_until
from tests.support.jobs.job_runs import start
from tests.support.processes import class_archive
from tests.support.processes.inspection import containers_of
from tests.support.processes.spark_sessions import Sessions

pytestmark = pytest.mark.spark

EXECUTORS = 3


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield sessions.get(
        {
            "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": class_archive.java_options(),
            "spark.executor.instances": "1",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
            # Otherwise the messages that Spark shuffled last keep an executor as well.
            "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        }
    )
    sessions.close()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Load:
    """A Spark job beside Penstock's: a task on each executor, which ends when it is told to."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        tasks = spark.sparkContext.parallelize(range(EXECUTORS), EXECUTORS)
        self._job = threading.Thread(target=tasks.foreach, args=[partial(hold, str(folder))])
        self._job.start()

    def executors(self) -> dict[int, int]:
        """The processes of the executors, with the task of each."""
        tasks = {int(path.stem): path.read_text() for path in self._folder.glob("*.runs")}
        return {int(pid): task for task, pids in tasks.items() for pid in pids.split()}

    def end(self, task: int) -> None:
        (self._folder / f"{task}.ends").touch()

    def close(self) -> None:
        for task in range(EXECUTORS):
            self.end(task)
        self._job.join()


def hold(folder: str, task: int) -> None:
    """Say in which executor this task runs, and wait for its end."""
    java = [process.pid for process in psutil.Process().parents() if "java" in process.name()]
    written = Path(folder, f"{task}.new")
    written.write_text(str(java[0]))
    written.rename(Path(folder, f"{task}.runs"))
    while not Path(folder, f"{task}.ends").exists():
        time.sleep(0.02)


def test_a_block_stays_where_containers_were_started(sessions: Sessions) -> None:
    context = sessions.get().sparkContext
    (executor,) = live_executors(context)
    kept = KeptExecutors(context)
    assert kept.number is None, "with a local master, Spark ignores its dynamic allocation"
    kept.number = 1
    answers = kept.caching(rdd_on(context, executor).map(str))
    kept.keep(["gone"], kept.caching(rdd_on(context, executor).map(str)))
    kept.keep([LOCAL_ID], answers)
    assert "gone" not in kept
    assert answers.collect() == ["0"]
    assert LOCAL_ID in kept
    wait_until(lambda: len(context._jsc.sc().getRDDStorageInfo()), "Spark's listeners to have heard of the block")
    (stored,) = context._jsc.sc().getRDDStorageInfo()
    assert (stored.numCachedPartitions(), stored.memSize()) == (1, 0)
    assert stored.diskSize() > 0
    kept.release()
    wait_until(lambda: not len(context._jsc.sc().getRDDStorageInfo()), "the end of the block")


@pytest.mark.slow
def test_the_executors_of_containers_stay_though_they_are_idle(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(100, seed=1)
    job = start(home, spark, until=None)
    context = spark.sparkContext

    def process(seed: int) -> None:
        home.publish(100, seed=seed)
        expected = 100 * seed
        wait_until(lambda: home.length("totals") >= expected or not job.is_active, f"{expected} messages of output")

    def epochs() -> int:
        return len(home.log.claims)

    def containers() -> dict[int, int]:
        """The live containers, each with the process of its executor."""
        here = psutil.Process().children(recursive=True)
        return {process.pid: int(process.cmdline()[-1]) for process in containers_of(here)}

    try:
        process(2)
        before = containers()
        (kept,) = before.values()
        load = Load(spark, tmp_path / "load")
        try:
            wait_until(lambda: len(load.executors()) == EXECUTORS, "as many executors as there are tasks")
            tasks = load.executors()
            load.end(tasks.pop(kept))
            idle, busy = tasks
            load.end(tasks[idle])
            wait_until(lambda: not psutil.pid_exists(idle), "the end of another executor that is idle")
            assert psutil.pid_exists(busy)
            process(3)
            assert containers() == before
        finally:
            load.close()
        wait_until(lambda: len(live_executors(context)) == 1, "the end of all but the executor of the container")
        process(4)
        assert containers() == before
        assert epochs() == 1, "no container was lost"
        kill(psutil.Process(kept))
        process(5)
        assert not containers().keys() & before.keys()
    finally:
        job.stop()
    home.verify()
    assert epochs() == 2
    assert not context._jsc.sc().getPersistentRDDs().size(), "Spark may remove the executor of a job that has ended"
