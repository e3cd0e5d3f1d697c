"""The message about an executor whose Python cannot run Penstock."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

import penstock
from penstock.spark.containers.executor_python import Launch, PythonFault, fault_in, fault_of, starting
from penstock.wire.containers import ContainerSpec

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
