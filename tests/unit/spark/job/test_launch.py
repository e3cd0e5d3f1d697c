"""The host of jobs on Spark, by what its module loads."""

from __future__ import annotations

from tests.support.processes.python import run_python

DISPLAYS = ("penstock.admin", "penstock.cli", "penstock.dashboard", "rich", "starlette", "typer", "uvicorn")
LOADED = f"""
import sys
import penstock.spark.job
print(*sorted(name for name in sys.modules if name.startswith({DISPLAYS})))
"""


def test_a_job_is_started_without_displays() -> None:
    """Only a job that is shown pays for what shows it."""
    shown = run_python("-c", LOADED)
    assert shown.stdout.split() == []
