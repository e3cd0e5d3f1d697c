"""The examples in docstrings of `penstock` work: they run once, in a process of their own, so that the processes of
pytest-xdist need not look for them in each of its modules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.tools.places import ROOT

SIMULATION = ROOT / "penstock" / "testing" / "simulation"


@pytest.mark.parametrize(
    ("in_simulation", "least"),
    [(False, 300), pytest.param(True, 2, marks=pytest.mark.slow)],
    ids=["others", "simulation"],
)
def test_the_examples_in_docstrings(in_simulation: bool, least: int) -> None:
    """The examples that simulate a job live whole lives, which takes as long as all others together."""
    files = [
        str(file)
        for file in (ROOT / "penstock").rglob("*.py")
        if file.is_relative_to(SIMULATION) == in_simulation and ">>>" in file.read_text("utf-8")
    ]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", *files]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.splitlines()[-1].split(" passed")[0])
    assert passed > least, done.stdout
