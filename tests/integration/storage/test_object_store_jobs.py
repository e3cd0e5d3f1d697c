"""Whole jobs whose root is an object store behind a line: healthy, slow, forgetful, and cut off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.main import app
from penstock.driver.job import Job
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home, wait_until
from tests.support.processes.spark_sessions import Sessions
from tests.support.stores.s3 import S3, give_up_soon, s3_server
from tests.support.streams.line import Fault
from tests.support.tools.cli import call_json

pytestmark = pytest.mark.spark

BACKENDS = ("changelog-files", "blob")
EVERY_BATCH: dict[str, Any] = {"task.commit.ms": 1}
RETRY_S = 0.5


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    """The server, and an environment that leads to it: the driver's, and so the one of all it starts."""
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def spark(sessions: Sessions, server: S3) -> SparkSession:
    """The JVM may be an older one, of another environment, so executors are given theirs as on a cluster."""
    given = {f"spark.executorEnv.{name}": value for name, value in server.environment.items()}
    return sessions.get(given)


@pytest.fixture
def s3(server: S3) -> Iterator[S3]:
    yield server
    server.line.restore()


class StoreHome(Home):
    """A job whose root is in the store."""

    def __init__(self, folder: Path, s3: S3, backend: str) -> None:
        super().__init__(folder)
        self.line = s3.line
        self.config |= {
            "job.root": s3.fresh_url(),
            "stores.backup.factories": backend,
            "stores.restore.factories": backend,
            "task.shutdown.ms": 5000,
        }

    def verify(self) -> None:
        """The last checkpoint, the outputs, and every checkpoint that can be restored, read over a healthy line."""
        self.line.restore()
        log = self.log
        self.verify_ended(log)
        for record in log.restorable:
            self.verify_checkpoint(record)

    @property
    def committed(self) -> int:
        """The number of messages that the last checkpoint is behind."""
        return sum(offset for own in self.checkpoints[-1].next_offsets.values() for offset in own.values())


class Runs:
    """Runs of one job in this process."""

    def __init__(self, spark: SparkSession, home: StoreHome) -> None:
        self.home = home
        self._spark = spark
        self._job: Job | None = None

    def start(self, config: Mapping[str, object] | None = None) -> Job:
        """Start it and wait until it runs."""
        job = self._start({**EVERY_BATCH, **(config or {})}, None)
        wait_until(lambda: job.exception or job.phase == "running", "the start checkpoint")
        assert job.exception is None, job.exception
        return job

    def run(self, config: Mapping[str, object] | None = None) -> Job:
        """Run it over what there is now."""
        job = self._start({**EVERY_BATCH, **(config or {})}, "latest")
        assert job.await_termination(DEADLINE_S)
        return job

    def _start(self, config: Mapping[str, object], until: Literal["latest"] | None) -> Job:
        merged = {**self.home.config, **config}
        self._job = job_app.totals_app().run(merged, spark=self._spark, until=until)
        return self._job

    def await_commit(self, job: Job, messages: int) -> None:
        """Wait until a checkpoint is behind so many messages; the store is asked only for those that are new."""
        seen: str | None = None

        def is_there() -> bool:
            nonlocal seen
            if job.last_checkpoint == seen:
                return False
            seen = job.last_checkpoint
            return self.home.committed >= messages

        wait_until(lambda: job.exception or is_there(), f"the commit of {messages} messages")
        assert job.exception is None, job.exception

    def end(self) -> None:
        """Whatever state it is in."""
        job = self._job
        if job is not None and job.is_active:
            job.stop(wait=False)
            job.stop(wait=False)
            wait_until(lambda: not job.is_active, "the end of the job")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path, s3: S3, backend: str) -> StoreHome:
    return StoreHome(tmp_path, s3, backend)


@pytest.fixture
def runs(spark: SparkSession, home: StoreHome) -> Iterator[Runs]:
    runs = Runs(spark, home)
    yield runs
    home.line.restore()
    runs.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's stores give up soon; those of containers do not."""
    give_up_soon(monkeypatch, RETRY_S)


def torn(s3: S3) -> None:
    """The reply to every third write is lost, and every fourth request or reply is cut in its body."""
    s3.line.plan(Fault.LOST_REPLY, method="PUT", times=inf, every=3)
    s3.line.plan(Fault.CUT_REQUEST, method="PUT", times=inf, every=4)
    s3.line.plan(Fault.CUT_REPLY, method="GET", times=inf, every=4)


def slow(s3: S3) -> None:
    s3.line.delay_s, s3.line.bytes_per_s = 0.2, 20e6


# Runs that go well.


@pytest.mark.parametrize("backend", ["blob", pytest.param("changelog-files", marks=pytest.mark.slow)], indirect=True)
def test_a_run_its_stop_the_next_run_and_commands(runs: Runs, home: StoreHome) -> None:
    run_twice(runs, home)
    assert [record.ended for record in home.checkpoints if record.ended] == ["stopped", "stopped"]
    home.verify()
    assert not (home.folder / "jobs").exists()

    options = [o for key in ("job.root", "systems.local.path") for o in ("-c", f"{key}={home.config[key]}")]
    status = call_json("status", "totals", *options)
    assert (status["status"], status["inputs"][0]["lag"]) == ("not running", 0)
    assert status["root"] == home.config["job.root"]
    records = call_json("checkpoint", "list", "totals", *options)
    assert records[-1]["id"] == status["lastCheckpoint"]["id"]
    listed = call_json("state", "list", "totals", *options)
    assert listed["versions"][-1]["checkpoint"] == records[-1]["id"]
    assert sum(each["count"] for each in listed["objects"]) > 0
    assert call_json("state", "verify", "totals", *options)


@pytest.mark.slow
def test_lost_replies_and_cut_bodies(runs: Runs, home: StoreHome, s3: S3) -> None:
    """A run and a restore: each finds what it has done itself, and reads again what came in part."""
    torn(s3)
    run_twice(runs, home)
    assert s3.line.met[Fault.LOST_REPLY] > 5
    assert s3.line.met[Fault.CUT_REQUEST] > 5
    assert s3.line.met[Fault.CUT_REPLY] > 5
    home.verify()
    assert len(home.log.claims) == 2, "one of each run: no failure was seen"


@pytest.mark.slow
def test_a_slow_store(runs: Runs, home: StoreHome, s3: S3) -> None:
    slow(s3)
    run_twice(runs, home)
    home.verify()
    assert len(home.log.claims) == 2


def run_twice(runs: Runs, home: StoreHome) -> None:
    home.publish(300)
    job = runs.start()
    runs.await_commit(job, 300)
    home.publish(100, seed=2)
    job.stop()
    home.publish(100, seed=3)
    runs.run()


# A store that is away.


@pytest.mark.slow
def test_a_store_that_is_away_for_a_while_is_waited_for(runs: Runs, home: StoreHome, s3: S3) -> None:
    """Batches that need no store go on; the commit waits, and has everything."""
    home.publish(100)
    job = runs.start()
    runs.await_commit(job, 100)
    s3.line.cut_off()
    home.publish(100, seed=2)
    wait_until(lambda: job.exception or home.length("totals") >= 200, "the batch without a store")
    assert job.is_active
    s3.line.restore()
    runs.await_commit(job, 200)
    job.stop()
    home.verify()
    assert len(home.log.claims) == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["changelog-files"], indirect=True)
def test_a_store_that_is_away_too_long(runs: Runs, home: StoreHome, s3: S3, impatient: None, tmp_path: Path) -> None:
    """The run ends with a clear error, and the next one goes on from the last checkpoint."""
    home.publish(100)
    job = runs.start({"task.commit.timeout.ms": 1500})
    runs.await_commit(job, 100)
    reached = tmp_path / "reached"
    home.append(0, [{"key": "k1", "n": 1, "do": "slow", "gate": str(reached)}])
    wait_until(reached.exists, "the batch is in the user's code")
    last = home.checkpoints[-1]
    s3.line.cut_off()
    with pytest.raises(ps.PenstockError, match=r"task\.commit\.timeout\.ms"):
        job.await_termination(DEADLINE_S)
    s3.line.restore()
    assert home.checkpoints[-1] == last
    home.publish(100, seed=3)
    runs.run()
    home.verify()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["changelog-files"], indirect=True)
def test_a_store_that_is_away_for_too_long_for_the_lease(runs: Runs, home: StoreHome, s3: S3, impatient: None) -> None:
    """No batch begins without the lease; the run ends with a clear error, and nothing is lost."""
    home.publish(100)
    job = runs.start({"job.lease.ms": 1000})
    runs.await_commit(job, 100)
    s3.line.cut_off()
    with pytest.raises(ps.PenstockTimeoutError, match=r"job\.lease\.ms.*Connection refused"):
        job.await_termination(DEADLINE_S)
    s3.line.restore()
    home.publish(100, seed=2)
    runs.run()
    home.verify()


@pytest.mark.parametrize("backend", ["changelog-files"], indirect=True)
@pytest.mark.slow
def test_a_store_that_is_away_at_the_start(runs: Runs, home: StoreHome, s3: S3, impatient: None) -> None:
    """It says where it looked, writes nothing, and the next start goes on."""
    home.publish(100)
    runs.run()
    before = home.log
    home.publish(100, seed=2)
    s3.line.cut_off()
    with pytest.raises(ps.RetryableError, match=r"Connection refused.*that the service is up") as caught:
        runs.run()
    assert str(home.config["job.root"]) in str(caught.value)
    root = ("-c", f"job.root={home.config['job.root']}")
    told = CliRunner().invoke(app, ["status", "totals", *root])
    assert told.exit_code == 1
    assert "Connection refused" in told.stderr
    s3.line.restore()
    assert home.log.records == before.records
    runs.run()
    home.verify()


@pytest.mark.parametrize("backend", ["changelog-files"], indirect=True)
def test_a_bucket_that_does_not_exist(runs: Runs, home: StoreHome) -> None:
    home.config["job.root"] = "s3://nobody-made-it/jobs"
    with pytest.raises(ps.ConfigError, match="bucket does not exist"):
        runs.run()


# Drivers of their own.


@pytest.mark.slow
def test_a_killed_driver(home: StoreHome, s3: S3) -> None:
    """The next one takes the lease over, and restores from the store."""
    home.publish(300)
    with home.driver(until=None, **EVERY_BATCH) as driver:
        driver.await_output(300)
        wait_until(lambda: not driver.running or home.committed > 0, "a commit")
        driver.kill()
    home.publish(200, seed=2)
    finish(home)
    home.verify()


def finish(home: StoreHome) -> None:
    with home.driver() as driver:
        driver.succeeded()
