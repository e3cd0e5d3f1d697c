"""The slow tests by turns: ten slices of files, of which a check runs one.

The number of commits says which, so that ten checks in a row run all of them. Where there is no history to count, the
day does. Files whose seconds are recorded are
spread over the slices evenly. Any other is where its name puts it. A file is therefore in one slice whatever else there
is, and a new one moves no other.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import pytest

from penstock.base.retry import SYSTEM_CLOCK
from tests.support.tools import durations
from tests.support.tools.places import ROOT

SLICES = 10
OF_COMMIT = "commit"
_COUNT = "rev-list", "--count", "HEAD"


def slice_of(file: str, planned: Mapping[str, int]) -> int:
    """The slice of a file, from 1 on."""
    return planned.get(file) or 1 + crc32(file.encode()) % SLICES


def plan(seconds: Mapping[str, float]) -> dict[str, int]:
    """The slices of files whose seconds are known: the longest first, each to the slice that has the least so far."""
    taken = dict.fromkeys(range(1, SLICES + 1), 0.0)
    found = dict[str, int]()
    for file in sorted(seconds, key=lambda each: (-seconds[each], each)):
        found[file] = min(taken, key=lambda number: (taken[number], number))
        taken[found[file]] += seconds[file]
    return found


def number(given: str) -> int:
    """The number of a slice, or that of the last commit.

    Raises:
        pytest.UsageError: there is no such slice.
    """
    if given == OF_COMMIT:
        return of_count(_days() if (count := commits(ROOT)) is None else count)
    if given not in map(str, range(1, SLICES + 1)):
        raise pytest.UsageError(f"there is no slice {given!r}: it is one of 1 to {SLICES}, or `{OF_COMMIT}`")
    return int(given)


def commits(folder: Path) -> int | None:
    """Count the commits of a clone. None if it has no history, or that of a shallow clone, which has as many commits
    each time: the day takes its place."""
    try:
        shallow, count = (_git(folder, *each) for each in (("rev-parse", "--is-shallow-repository"), _COUNT))
    except (OSError, subprocess.SubprocessError):
        return None
    return None if shallow == "true" else int(count)


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def _days() -> int:
    return SYSTEM_CLOCK.now_ms() // 86_400_000


def of_count(commits: int) -> int:
    """The slice of a check, by the number of commits."""
    return 1 + commits % SLICES


class Slice:
    """A pytest plugin that leaves out the slow tests of other slices."""

    def __init__(self, given: str) -> None:
        self._number = number(given)
        self._name = f"slow tests: slice {self._number} of {SLICES}"
        self._plan = plan(durations.read(durations.SLOW))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Runs after the marks are set and after `-m` has chosen."""
        own: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            is_own = slice_of(item.nodeid.partition("::")[0], self._plan) == self._number
            (own if is_own or not item.get_closest_marker("slow") else others).append(item)
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = own

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Say it first as well: a run may be killed."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not hasattr(session.config, "workerinput"):
            reporter.write_line(self._name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # a slice need not have tests in both phases

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.line(self._name)
