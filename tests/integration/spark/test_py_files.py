"""A script whose module only the driver finds: the error says what to ship, and with that it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.processes.python import PENSTOCK, run_python

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import sys

sys.path.insert(0, sys.argv[1])

import helper_of_the_script as helper
import penstock as ps

app = ps.StreamApplication("shipped")
app.store("counts")
app.input("local.in").process(helper.Count, stores=["counts"])
config = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
if len(sys.argv) > 2:
    config["spark.submit.pyFiles"] = sys.argv[2]
job = app.run(config, until="latest")
job.await_termination()
print("ended at", job.last_checkpoint)
"""
HELPER = """
import penstock as ps


class Count(ps.StreamTask):
    def init(self, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        self.counts["all"] = self.counts.get("all", 0) + 1
"""


def test_a_module_that_only_the_driver_finds(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    helper = modules / "helper_of_the_script.py"
    helper.write_text(HELPER)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {"PENSTOCK_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    call = partial(run_python, folder=tmp_path, environ=environment, status=None)
    call(*PENSTOCK, "stream", "create", "in", "--partitions", "1", status=0)
    failed = call(str(script), str(modules))
    assert failed.returncode != 0
    assert "No module named 'helper_of_the_script'" in failed.stderr, failed.stderr
    assert "name its file (.py, or a .zip of a package) in `spark.submit.pyFiles`" in failed.stderr, failed.stderr
    done = call(str(script), str(modules), str(helper))
    assert "ended at" in done.stdout, done.stderr


LACKING = """
import sys
import penstock as ps

app = ps.StreamApplication("lacking")
app.store("counts")
app.input("local.in").process(lambda: ps.StreamTask(), stores=["counts"])
config = {"spark.master": "local[1]", "spark.pyspark.python": sys.argv[1]}
if len(sys.argv) > 2:
    config["spark.submit.pyFiles"] = sys.argv[2]
app.run(config, until="latest").await_termination()
"""


@pytest.mark.parametrize("ships", [False, True])
def test_a_python_that_lacks_what_penstock_needs_ends_the_run_at_once(tmp_path: Path, ships: bool) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True, timeout=120)
    python = str(tmp_path / "empty" / "bin" / "python")
    (tmp_path / "script.py").write_text(LACKING)
    (tmp_path / "helper.py").write_text("")
    environment = {"PENSTOCK_HOME": str(tmp_path / "home"), "PYTHONPATH": None}
    call = partial(run_python, folder=tmp_path, environ=environment, status=None)
    call(*PENSTOCK, "stream", "create", "in", "--partitions", "1", status=0)
    done = call("script.py", python, *([str(tmp_path / "helper.py")] if ships else []))
    assert done.returncode == 1
    said = f"the Python of the executor.*, `{re.escape(python)}`, has no module `penstock`. .*--archives"
    assert re.search(said, done.stderr), done.stderr
    assert "since the last checkpoint" not in done.stderr, "it was tried again"
