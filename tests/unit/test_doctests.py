"""The examples in docstrings of `penstock` work: they run once, in a process of their own, so that the processes of
pytest-xdist need not look for them in each of its modules."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.tools.places import ROOT


def test_the_examples_in_docstrings() -> None:
    files = [str(file) for file in (ROOT / "penstock").rglob("*.py") if ">>>" in file.read_text("utf-8")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", *files]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.splitlines()[-1].split(" passed")[0])
    assert passed > 200, done.stdout
