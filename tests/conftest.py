"""For all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.testing.kafka_broker import KafkaBroker
from tests.support import class_archive, kafka, scratch

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and tables would be as narrow
class_archive.use()

# Tests are not timed: neither an example nor the making of one. A failure prints what repeats it.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("test", _UNTIMED, max_examples=60, stateful_step_count=30)
settings.register_profile("deep", _UNTIMED, max_examples=500, stateful_step_count=50)
settings.load_profile("test")

LONGEST = (
    "test_hosts.py",
    "test_kills.py",
    "test_commit_kills.py",
    "test_query_kills.py",
    "test_signals.py",
    "test_drain_kills.py",
    "test_drain_on_spark.py",
    "test_side_inputs_kills.py",
    "test_growth.py",
    "test_fencing.py",
    "test_memory_of_batches.py",
    "test_cli_run.py",
    "test_startpoint_faults.py",
    "test_cli_state.py",
    "test_failure_reports.py",
    "test_container_starts.py",
    "test_py_files.py",
    "test_spark_submit.py",
    "test_import_spark.py",
    "test_object_store_jobs.py",
    "test_startpoints.py",
    "test_job.py",
    "test_commits_that_end_runs.py",
)
"""Files that begin first, so that the processes that share them end at about the same time."""


_SCRATCH = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where temporary files are."""
    parser.addoption("--in-memory", action="store_true", help="temporary files are in memory, if that has room")


def pytest_configure(config: pytest.Config) -> None:
    """A folder for the temporary files of all processes of this run."""
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist has its parent's
        config.stash[_SCRATCH] = scratch.begin(in_memory=config.getoption("--in-memory"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove that folder, unless a test has failed."""
    folder = session.config.stash.get(_SCRATCH, None)
    if folder is not None and exitstatus != pytest.ExitCode.TESTS_FAILED:
        scratch.end(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; otherwise the order stays."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests with the mark `kafka` where no broker can be had. Skipped here, they are one line at the end."""
    if item.get_closest_marker("kafka"):
        kafka.skip_without_kafka()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A real Kafka broker, which all tests of this process share. They have the mark `kafka`, use topics that
    `new_topic` makes, and leave the broker running."""
    yield from kafka.shared_broker()
