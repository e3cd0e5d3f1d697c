"""For all tests."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.processes import class_archive
from tests.support.streams import kafka
from tests.support.tools import attacks, deadline, durations, memory, scratch, slices, wings

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and tables would be as narrow
class_archive.use()

# Tests are not timed: neither an example nor the making of one. A failure prints what repeats it.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("quick", _UNTIMED, max_examples=10, stateful_step_count=20)
settings.register_profile("deep", _UNTIMED, max_examples=100, stateful_step_count=50)
settings.load_profile("quick")

_QUICK_SEEDS = 1
_SCRATCH = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-memory", action="store_true", help="temporary files are in memory, if that has room")
    parser.addoption("--record-durations", action="store_true", help="write the seconds of each file of the run")
    parser.addoption("--wing", help="only the tests of this wing, such as `outbox`")
    parser.addoption("--attacks", action="store_true", help="list the result of each test, as `make attack` does")
    parser.addoption("--slice", help=f"of the slow tests, this slice alone: 1 to {slices.SLICES}, or `commit`")
    parser.addoption("--no-new-after", type=float, help="take no new test after this time, in seconds since 1970")


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder for the temporary files of all processes of this run."""
    config.addinivalue_line("markers", "wing(name): about a wing; `make test WING=outbox` runs the tests of one")
    config.addinivalue_line("markers", "few(count): of a test's cases, all but so many are slow")
    memory.limit()
    config.pluginmanager.register(memory.Explanation())
    if config.getoption("--slice"):
        config.option.slice = str(slices.number(config.getoption("--slice")))  # the same one in all processes
        config.pluginmanager.register(slices.Slice(config.getoption("--slice")))
    if config.getoption("--no-new-after"):
        config.pluginmanager.register(deadline.Deadline(config.getoption("--no-new-after")))
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist has its parent's
        config.stash[_SCRATCH] = scratch.begin(in_memory=config.getoption("--in-memory"))
        if config.getoption("--record-durations"):
            config.pluginmanager.register(durations.Recorder())
        if config.getoption("--attacks"):
            config.pluginmanager.register(attacks.Reporter())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove that folder, unless a test has failed."""
    folder = session.config.stash.get(_SCRATCH, None)
    if folder is not None and exitstatus != pytest.ExitCode.TESTS_FAILED:
        scratch.end(folder)
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--wing"):
        session.exitstatus = pytest.ExitCode.OK  # a wing need not have tests in both phases


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark what is slow and of which wing before `-m` chooses, and sort what it has chosen: the longest files first."""
    _mark_slow(items)
    wings.mark(items)
    if wing := config.getoption("--wing"):
        wings.keep_only(wing, config, items)
    yield
    durations.longest_first(items)


def _mark_slow(items: list[pytest.Item]) -> None:
    """All but the first seed of a test that is repeated with random seeds are slow. So are the tests of a contract that
    its mark `quick` does not name, and the cases that the mark `few` leaves out."""
    cases: defaultdict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if hasattr(item, "callspec") and item.callspec.indices.get("seed", 0) >= _QUICK_SEEDS:
            item.add_marker("slow")
        quick = item.get_closest_marker("quick")
        if quick is not None:
            unknown = [name for name in quick.args if not hasattr(item.cls, name)]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: `quick` names what is no test: {', '.join(unknown)}")
            if item.originalname not in quick.args:
                item.add_marker("slow")
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases[item.parent, item.originalname].append(item)
    for found in cases.values():
        _keep_few(found)


def _keep_few(cases: list[pytest.Function]) -> None:
    """As many cases of a test as its mark says stay quick. They are spread evenly, and begin with one that follows from
    the test's name, so that tests with the same cases do not all keep the same one."""
    (count,) = (mark.args[0] for mark in (cases[0].get_closest_marker("few"),) if mark)
    first = crc32(cases[0].nodeid.partition("[")[0].encode())
    kept = {(first + number * len(cases) // count) % len(cases) for number in range(count)}
    for number, case in enumerate(cases):
        if number not in kept:
            case.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """No search for garbage looks at the thousands of items that are collected, neither while they become more nor
    afterwards: they stay to the end. It would be a quarter of the time of collecting them, in each process."""
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests with the mark `kafka` where no broker can be had. Skipped here, they are one line at the end."""
    if item.get_closest_marker("kafka"):
        kafka.skip_without_kafka()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A real Kafka broker, which all tests of the run share. They have the mark `kafka`, use topics that `new_topic`
    makes, and leave the broker running."""
    with kafka.shared_broker() as broker:
        yield broker
