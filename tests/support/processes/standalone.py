"""A Spark standalone cluster whose master and workers are on hosts of their own, and drivers on the master's host."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from penstock.spark.session.gateway import write_conf
from tests.support.jobs.home import DriverProcess, Home, wait_until
from tests.support.processes import class_archive
from tests.support.processes.hosts import Host, hosts

_SPARK = Path(pyspark.__file__).parent
_PORT = 7077
_NOT_INHERITED = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


@dataclass
class Standalone:
    """The running cluster."""

    main: Host
    """Where the master and the drivers are."""
    workers: tuple[Host, ...]
    folder: Path
    secret: str
    """Spark's, for the cluster and all who use it."""

    @property
    def config(self) -> dict[str, object]:
        """The configuration of a job that runs here."""
        return {
            "spark.master": f"spark://{self.main.address}:{_PORT}",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": class_archive.java_options(),
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
        }

    def driver(self, home: Home, until: str | None = "latest", **config: object) -> DriverProcess:
        """A driver on the main host."""
        config = {**self.config, **{key.replace("_", "."): value for key, value in config.items()}}
        return DriverProcess(home, "totals", until, config, prefix=self.main.prefix, environ=environment())

    def containers(self, host: Host) -> list[psutil.Process]:
        return [p for p in host.processes() if _has(p, "penstock.container")]

    def executors(self, host: Host) -> list[psutil.Process]:
        return [p for p in host.processes() if _has(p, "org.apache.spark.executor.CoarseGrainedExecutorBackend")]


@contextmanager
def standalone(
    folder: Path, *, workers: int = 2, cores: int = 1, worker_env: Mapping[str, str] | None = None
) -> Iterator[Standalone]:
    """A master and workers with so many cores each. A worker that is silent for 5 s is dead to the master."""
    names = ["main", *(f"worker{number}" for number in range(1, workers + 1))]
    with hosts(*names) as (main, *others):
        folder.mkdir(exist_ok=True)
        url = f"spark://{main.address}:{_PORT}"
        secret = secrets.token_hex(32)
        keys = {"spark.authenticate": "true", "spark.authenticate.secret": secret}
        shared = ["--properties-file", str(write_conf(folder / "spark.conf", keys))]
        _java(main, folder / "master.log", ["org.apache.spark.deploy.master.Master", "--port", str(_PORT), *shared])
        wait_until(lambda: "New state: ALIVE" in _text(folder / "master.log"), "Spark's master")
        for host in others:
            command = ["org.apache.spark.deploy.worker.Worker", "-c", str(cores), "-m", "1g", *shared, url]
            work = folder / host.name
            work.mkdir()
            _java(host, folder / f"{host.name}.log", [*command, "-d", str(work)], worker_env or {})
        wait_until(
            lambda: _text(folder / "master.log").count("Registering worker") >= workers,
            "the workers to register",
        )
        yield Standalone(main, tuple(others), folder, secret)


def environment() -> dict[str, str]:
    """The environment of a process on a host: none of what this machine says about Spark's addresses."""
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {**inherited, "PYSPARK_PYTHON": sys.executable}


def _java(host: Host, log: Path, command: list[str], env: Mapping[str, str] | None = None) -> None:
    options = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(
            [
                class_archive.java_options(),
                "-Dspark.worker.timeout=5",
                # Otherwise a master forgets a dead worker after 16 times that, and takes no notice of it afterwards.
                "-Dspark.dead.worker.persistence=1000",
            ]
        ),
        "SPARK_HOME": str(_SPARK),
    }
    host.start([str(_SPARK / "bin" / "spark-class"), *command], log, {**environment(), **options, **(env or {})})


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _has(process: psutil.Process, word: str) -> bool:
    try:
        return word in process.cmdline()
    except psutil.Error:
        return False
