"""A time after which a run takes no new test: what is left is skipped, and the end of the run names its files."""

from __future__ import annotations

import time
from collections import Counter

import pytest

_REASON = "left: the time was over"


class Deadline:
    """A pytest plugin of each process. `end` is in seconds since 1970, so that runs one after another can share it."""

    def __init__(self, end: float) -> None:
        self._end = end
        self._left = Counter[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Before the fixtures of the test."""
        if time.time() >= self._end:
            pytest.skip(_REASON)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if is_left(report):
            self._left[report.nodeid.partition("::")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            terminalreporter.section("left, because the time was over")
        for file, count in sorted(self._left.items()):
            terminalreporter.line(f"{count:4} {file}")


def is_left(report: pytest.TestReport) -> bool:
    """True for a test that did not run because the time was over."""
    return report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(_REASON)
