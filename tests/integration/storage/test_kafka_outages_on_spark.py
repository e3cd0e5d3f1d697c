"""Jobs from Kafka to Kafka on Spark, also while the broker or the driver stands still or is killed: exactly once."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.home import kill as kill_process
from tests.support.processes.inspection import containers_of
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import ROOT
from tests.support.world import kafka_world
from tests.support.world.kafka_world import KafkaWorld, read_committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DRIVER = """
import json, sys
from pyspark import cloudpickle
from tests.support.faults import ways
from tests.support.world import kafka_world
cloudpickle.register_pickle_by_value(kafka_world)
source, output, config, until = json.loads(sys.argv[1])
if "job.latency.target.ms" in config:
    ways.alternate()
kafka_world.totals_app(source, output).run(config, until=until).await_termination()
"""


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(kafka_world)


broker = fixture_of(KafkaBroker, using=(), scope="module")
"""A broker of this file, which comes and goes."""


@pytest.fixture
def world(broker: KafkaBroker, tmp_path: Path) -> Iterator[KafkaWorld]:
    if not broker.running:
        broker.start()
    world = KafkaWorld(broker, tmp_path)
    yield world
    world.close()


def configuration(world: KafkaWorld, **config: object) -> dict[str, object]:
    return {
        "job.name": world.paths.name,
        "job.root": str(world.folder / "jobs"),
        "job.logged.store.base.dir": str(world.folder / "state"),
        "job.batch.max.messages": 40,
        "task.commit.ms": 200,
        "job.retry.max": 2,
        "systems.kafka.consumer.default.api.timeout.ms": 2000,
        f"streams.kafka.{world.output}.output.guarantee": "exactly-once",
        **world.broker.system_config(),
        **{key.replace("_", "."): value for key, value in config.items()},
    }


def published(world: KafkaWorld) -> int:
    return len(read_committed(world.broker, world.output))


def start_driver(world: KafkaWorld, name: str, config: dict[str, object], until: str | None) -> subprocess.Popen[bytes]:
    """The job in a separate process, which logs to the file of that name."""
    given = json.dumps([f"kafka.{world.source}", f"kafka.{world.output}", config, until])
    command = [sys.executable, "-c", DRIVER, given]
    with (world.folder / name).open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def test_a_job_from_kafka_to_kafka(world: KafkaWorld, spark: SparkSession) -> None:
    world.put(600)
    assert world.app.run(configuration(world), spark=spark, until="latest").await_termination(DEADLINE_S)
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "frozen", "stopped"])
def test_a_broker_that_is_away_for_long_during_a_run(world: KafkaWorld, spark: SparkSession, fault: str) -> None:
    world.put(600)
    broker = world.broker
    job = world.app.run(configuration(world, job_retry_max=1), spark=spark)  # without an end: it needs the broker
    try:
        wait_until(lambda: not job.is_active or published(world) > 100, "the first output")
        if not job.is_active:
            job.await_termination()  # raises why
        {"killed": broker.kill, "frozen": broker.freeze, "stopped": broker.stop}[fault]()
        wait_until(lambda: job.outage is not None or not job.is_active, "the job waits")
        if not job.is_active:
            job.await_termination()
        assert job.outage is not None
        assert broker.bootstrap_servers in job.outage.reason
        first, tries = job.outage, [job.outage]

        def tried() -> int:
            if (last := job.outage) is not None and last is not tries[-1]:
                tries.append(last)
            return len(tries)

        wait_until(lambda: not job.is_active or tried() > 2, "it tries more often than it may fail")
        if not job.is_active:
            job.await_termination()  # raises why
        assert job.outage is not None
        assert job.outage.since_ms == first.since_ms
        assert job.is_active
        (broker.resume if fault == "frozen" else broker.start)()
        world.put(200)
        wait_until(lambda: not job.is_active or published(world) >= 800, "all output")
        job.stop()
    finally:
        if not broker.running:
            broker.start()
        if job.is_active:
            job.stop(wait=False)
            job.stop(wait=False)
    world.check()


@pytest.mark.slow
def test_a_driver_that_wakes_after_another_took_over(world: KafkaWorld) -> None:
    world.put(1500)
    config = configuration(world, job_lease_ms=2000, spark_master="local[2]")
    first = start_driver(world, "first.log", config, None)
    second: subprocess.Popen[bytes] | None = None
    try:
        wait_until(lambda: published(world) > 100, "the first output")
        first.send_signal(signal.SIGSTOP)
        second = start_driver(world, "second.log", config, "latest")
        assert second.wait(DEADLINE_S) == 0, (world.folder / "second.log").read_text()[-4000:]
        world.check()
        first.send_signal(signal.SIGCONT)
        assert first.wait(DEADLINE_S) == 1
        log = (world.folder / "first.log").read_text()
        assert "FencedError" in log, log[-4000:]
        world.check()
    finally:
        for each in filter(None, (first, second)):
            each.kill()
            each.wait()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kills_while_batches_take_both_ways_in_turn(world: KafkaWorld, seed: int) -> None:
    """Drivers, containers, direct workers and Spark's workers, at any step of a transaction."""
    part, kills, chance, told = 400, 10, random.Random(seed), [f"seed {seed}"]
    config = configuration(
        world, job_lease_ms=2000, job_latency_target_ms=50, job_retry_max=50, container_lost_ms=5000,
        spark_master="local[2]",
    )  # fmt: skip
    driver = start_driver(world, "driver-0.log", config, None)
    try:
        for kill in range(kills):
            moment = len(world.given) + chance.randrange(part)
            world.put(part)
            wait_until(lambda: published(world) >= moment or driver.poll() is not None, f"{moment} messages")  # noqa: B023
            threading.Event().wait(chance.uniform(0, 0.4))
            assert driver.poll() is None
            name = ["driver", *VICTIMS][kill % 4]
            if name == "driver":
                jvms = psutil.Process(driver.pid).children()
                driver.kill()
                driver.wait()
                psutil.wait_procs(jvms, DEADLINE_S)
                driver = start_driver(world, f"driver-{kill + 1}.log", config, None)
            else:
                while not _victims(driver, name) and driver.poll() is None:
                    world.put(10)  # it may start with a batch
                    threading.Event().wait(0.1)
                kill_process(chance.choice(_victims(driver, name)))
            told.append(f"killed {name} at {moment}")
        wait_until(lambda: published(world) >= len(world.given) or driver.poll() is not None, "all output")
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(DEADLINE_S) == 0
        world.check()
    except BaseException:
        print(*told, *(log.read_text()[-4000:] for log in sorted(world.folder.glob("driver-*.log"))), sep="\n")
        raise
    finally:
        driver.kill()
        driver.wait()


VICTIMS = {
    "direct worker": "penstock.direct",
    "container": "",
    "worker": "penstock.spark.workers.worker_daemon",
}
"""Processes of a job, by what their commands have."""


def _victims(driver: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """The live ones. The command of a worker is that of its parent, PySpark's daemon."""
    below = psutil.Process(driver.pid).children(recursive=True)
    if name == "container":
        return containers_of(below)
    found = [each for each in below if VICTIMS[name] in _command(each)]
    return found[1:] if name == "worker" else found


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
