"""Settings of a long-lived process of a job."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from penstock.host.process import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
allow_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "then"), [(1024, 4096, "4096 4096"), (64, 64, "64 64")])
def test_as_many_files_as_the_host_allows(soft: int, hard: int, then: str) -> None:
    run = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    assert subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == then
