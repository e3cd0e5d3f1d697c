"""spark-submit to a standalone cluster of several hosts: what it ships reaches the containers there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.jobs.home import Home, wait_until
from tests.support.jobs.submitted import Submitted, submitted, write_application
from tests.support.processes.hosts import Host, why_no_hosts
from tests.support.processes.standalone import Standalone, environment, standalone
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.packed import pack_environment, zip_penstock

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts())),
]
STANDBYS = {"job.standbytasks.replication.factor": 2, "container.lost.ms": 10_000}


cluster = fixture_of(lambda tmp_path_factory: standalone(tmp_path_factory.mktemp("cluster") / "spark"), scope="module")


def options(cluster: Standalone, *more: str) -> list[str]:
    """The options of spark-submit for this cluster."""
    conf = dict(cluster.config)
    found = ["--master", str(conf.pop("spark.master"))]
    for key, value in conf.items():
        found += ["--conf", f"{key}={value}"]
    return [*found, "--conf", "spark.executor.instances=2", *more]


def await_containers(cluster: Standalone, driver: Submitted, host: Host, but: psutil.Process | None = None) -> None:
    """Until there is a container on the host, another one than `but`."""
    wait_until(lambda: set(cluster.containers(host)) - {but} or not driver.running, f"containers on {host.name}")
    assert driver.running, driver.log[-4000:]


def await_all_read(home: Home, driver: Submitted) -> None:
    """Until a checkpoint is behind the last message."""
    published = sum(len(events) for events in home.events["events"].values())

    def read() -> int:
        last = home.checkpoints[-1:]
        return sum(offset for record in last for task in record.next_offsets.values() for offset in task.values())

    wait_until(lambda: read() == published or not driver.running, "a checkpoint behind the last message")
    assert driver.running, driver.log[-4000:]


def test_py_files_and_files_reach_containers_after_a_loss_and_standbys(tmp_path: Path, cluster: Standalone) -> None:
    home = Home(tmp_path)
    home.config |= STANDBYS
    shipped = write_application(tmp_path / "app")
    home.publish(300, seed=1)
    with submitted(home, options(cluster, *shipped), prefix=cluster.main.prefix, environ=environment()) as driver:
        for host in cluster.workers:
            await_containers(cluster, driver, host)
        await_all_read(home, driver)
        (lost,) = cluster.containers(cluster.workers[0])
        lost.kill()
        home.publish(300, seed=2)
        await_containers(cluster, driver, cluster.workers[0], but=lost)
        await_all_read(home, driver)
        home.publish(300, seed=3)
        await_all_read(home, driver)
        driver.terminate()
        assert driver.ended() == 0
    assert "ModuleNotFoundError" not in driver.log
    assert home.checkpoints[-1].ended == "stopped"
    home.verify()


@pytest.mark.parametrize("penstock", ["in-the-archive", "in-py-files"])
def test_an_archive_has_the_python_of_all_processes(tmp_path: Path, cluster: Standalone, penstock: str) -> None:
    try:
        archive = pack_environment(tmp_path, with_penstock=penstock == "in-the-archive")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a virtual environment cannot be packed here: {error}")
    home = Home(tmp_path)
    shipped = [*write_application(tmp_path / "app"), "--archives", f"{archive}#environment"]
    if penstock == "in-py-files":
        shipped[1] += f",{zip_penstock(tmp_path)}"
    home.publish(300, seed=1)
    environ = {**environment(), "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "./environment/bin/python"}
    with submitted(home, options(cluster, *shipped), prefix=cluster.main.prefix, environ=environ) as driver:
        for host in cluster.workers:
            await_containers(cluster, driver, host)
        pythons = [p.cmdline()[0] for host in cluster.workers for p in cluster.containers(host)]
        await_all_read(home, driver)
        driver.terminate()
        assert driver.ended() == 0
    work = re.escape(str(cluster.folder))
    assert all(re.fullmatch(rf"{work}/worker\d/app-[^/]+/\d+/(\./)?environment/bin/python", each) for each in pythons)
    home.verify()


def test_a_python_without_penstock_is_named_at_the_first_failure(tmp_path: Path, cluster: Standalone) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True, timeout=120)
    python = str(tmp_path / "empty" / "bin" / "python")
    home = Home(tmp_path)
    shipped = write_application(tmp_path / "app")
    environ = {**environment(), "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": python}
    with submitted(home, options(cluster, *shipped), prefix=cluster.main.prefix, environ=environ) as driver:
        assert driver.ended() == 1
    where = r"executor \d on 10\.99\.7\.\d \(host worker\d\)"
    said = f"the Python of {where}, `{re.escape(python)}`, has no module `penstock`"
    assert re.search(said, driver.log), driver.log
    assert "failure 1 since the last checkpoint" not in driver.log
    assert "ERROR TaskSetManager" not in driver.log, "Spark has not repeated anything"
