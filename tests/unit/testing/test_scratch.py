"""The folder for temporary files of a run of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RUN = """
import os, sys, tempfile
from tests.support.tools import scratch
folder = scratch.begin(in_memory=False)
assert tempfile.mkdtemp().startswith(str(folder)) and os.environ["TMPDIR"] == str(folder)
if sys.argv[1] == "end":
    scratch.end(folder)
"""


def run(base: Path, how: str) -> list[str]:
    """The content of the usual folder after a run that ends like this."""
    environment = os.environ | {"TMPDIR": str(base), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", RUN, how], check=True, env=environment)
    return [found.name for found in base.iterdir()]


def test_a_run_leaves_nothing_but_what_a_failed_one_keeps_until_the_next(tmp_path: Path) -> None:
    (kept,) = run(tmp_path, "fail")
    (tmp_path / f"penstock-tests-{os.getpid()}-runs").mkdir()
    assert kept.startswith("penstock-tests-")
    assert run(tmp_path, "end") == [f"penstock-tests-{os.getpid()}-runs"]
