"""Containers on Spark: the two losses of one, executors whose Python cannot run Penstock, and none at a start."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest
from pyspark import cloudpickle

import penstock
from penstock.config.load import load_config
from penstock.spark.containers.executor_python import Launch, PythonFault, fault_in, fault_of, starting
from penstock.spark.containers.launch import no_executor_text
from penstock.spark.containers.losses import LossWatch
from penstock.wire.containers import ContainerSpec

DEADLINE_S = 60.0


@dataclass
class Client:
    """As much of a client as a watch looks at."""

    address: Any = field(default_factory=lambda: SimpleNamespace(container="7-0"))
    last_beat_at: float = field(default_factory=time.monotonic)
    last_beat: Any = None
    lost: str | None = None
    is_here: bool = True

    def death(self) -> None:
        return None


def watch(client: Client, **config: int) -> LossWatch:
    overrides = {"job.name": "j", **{key.replace("_", "."): value for key, value in config.items()}}
    settings = load_config(overrides=overrides, environ={}).container
    return LossWatch(cast("Any", None), settings, lambda: [cast("Any", client)])


def test_a_container_that_is_silent_for_too_long_is_lost() -> None:
    client, noticed = Client(), threading.Event()
    losses = watch(client, container_lost_ms=1000)
    losses.start(noticed.set)
    assert noticed.wait(DEADLINE_S)
    losses.stop()
    assert losses.lost.is_set()
    assert losses.loss("nothing").startswith("container 7-0: silent for ")


def test_a_container_whose_code_does_not_return_is_lost_though_it_beats() -> None:
    client, noticed = Client(last_beat=SimpleNamespace(stalled_ms=5000, overdue="")), threading.Event()
    losses = watch(client, container_attempt_timeout_ms=4000, container_lost_ms=600_000)
    losses.start(noticed.set)
    assert noticed.wait(DEADLINE_S)
    losses.stop()
    assert "processing one message for 5000 ms, container.attempt.timeout.ms is 4000" in str(client.lost)


def test_what_takes_longer_than_it_may_ends_the_batch() -> None:
    client, noticed = (
        Client(last_beat=SimpleNamespace(stalled_ms=0, overdue="operator `last` has taken")),
        threading.Event(),
    )
    losses = watch(client, container_lost_ms=600_000)
    losses.start(noticed.set)
    assert noticed.wait(DEADLINE_S)
    losses.stop()
    assert losses.overdue == client.lost == "operator `last` has taken"
    assert not losses.lost.is_set(), "the run does not go on elsewhere"


def test_a_container_that_ends_after_the_run_is_not_lost() -> None:
    client = Client()
    losses = watch(client)
    losses.stop()
    losses.lose(cast("Any", client))
    assert not losses.lost.is_set()
    assert losses.loss("nothing") == "nothing"


DAEMON = """org.apache.spark.SparkException: Error from python worker:
  Traceback (most recent call last):
    File "/app/penstock/engine/worker.py", line 10, in <module>
      import pyarrow as pa
  ModuleNotFoundError: No module named 'pyarrow.lib'
PYTHONPATH was:
  /spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number"""
NO_PENSTOCK = """Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'penstock.spark.workers.worker_daemon' \
(ModuleNotFoundError: No module named 'penstock')
PYTHONPATH was:"""
VERSION = """pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has \
different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."""
NO_PYTHON = """Caused by: java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or \
directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory"""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (DAEMON, PythonFault("has no module `pyarrow.lib`")),
        (NO_PENSTOCK, PythonFault("has no module `penstock`")),
        (VERSION, PythonFault("is version 3.12, and the driver's is 3.11: both must be the same")),
        (NO_PYTHON, PythonFault("cannot be started: error=2, No such file or directory", "./environment/bin/python")),
        ("java.io.IOException: No space left on device", None),
        ("the container process 7 on h1 did not start within job.container.start.timeout.ms", None),
    ],
)
def test_what_is_wrong_is_found_in_what_spark_says(text: str, fault: PythonFault | None) -> None:
    assert fault_in(text) == fault


def test_the_text_names_executor_python_and_what_to_do() -> None:
    text = PythonFault("has no module `msgspec`", "/opt/bin/python", "node7").text("executor 3 on 10.0.0.7", "python3")
    assert text.startswith(
        "the Python of executor 3 on 10.0.0.7 (host node7), `/opt/bin/python`, has no module `msgspec`. "
    )
    assert all(word in text for word in ("spark.pyspark.python", "PYSPARK_PYTHON", "--archives", "image"))
    assert "`python3`" in PythonFault("has no module `msgspec`").text("the executor", "python3")


def answers_of(python: str, folder: Path, path: str) -> list[Any]:
    """The answers of a worker in another Python."""
    spec = ContainerSpec(run_id="r", secret="s", host=None, log_directory=str(folder), copies_directory=None)
    data = folder / "function"
    data.write_bytes(cloudpickle.dumps(starting(Launch(spec, 0, 1.0, frozenset(), {}))))
    code = (
        f"import sys, pickle; sys.path.append({path!r}); from pyspark import cloudpickle\n"
        f"function = pickle.load(open({str(data)!r}, 'rb'))\n"
        "sys.stdout.buffer.write(pickle.dumps(list(function([]))))"
    )
    libraries = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    environment = {"PYTHONPATH": os.pathsep.join(map(str, libraries))}
    command = [python, "-c", code]
    done = subprocess.run(command, capture_output=True, env=environment, cwd=folder, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    answers: list[Any] = pickle.loads(done.stdout)
    return answers


def test_a_python_without_penstock_says_so_itself(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True, timeout=120)
    python = str(tmp_path / "empty" / "bin" / "python")
    fault = fault_of(answers_of(python, tmp_path, ""))
    assert fault is not None
    assert (fault.python, fault.what) == (python, "has no module `penstock`")
    assert fault.host
    # With Penstock alone, as `--py-files` ships it, what it needs is missing.
    fault = fault_of(answers_of(python, tmp_path, str(Path(penstock.__file__).parents[1])))
    assert fault is not None
    assert fault.what.startswith("has no module `")
    assert "penstock" not in fault.what


def test_without_an_executor_the_application_and_the_cluster_are_named() -> None:
    said = no_executor_text(500, "application_17_0042", "yarn", "http://gateway:4040")
    assert "job.container.start.timeout.ms=500" in said
    assert "application_17_0042" in said
    assert "yarn" in said
    assert "http://gateway:4040" in said


def test_executors_without_containers_are_not_said_to_be_missing() -> None:
    said = no_executor_text(500, "application_17_0042", "yarn", None, ["executor 1 on a: no Python"])
    assert "no executor came up" not in said
    assert "application_17_0042" in said
    assert said.endswith("executor 1 on a: no Python")
