"""A limit of memory for each process of the tests, so that one that grows without end does not take the machine.

The limit is that of written memory (`RLIMIT_DATA`), which all that tests start have as well. It does not count what is
only reserved: a JVM reserves much more than it needs, and a limit of addresses (`RLIMIT_AS`) would have to be so large
that it limits nothing. At the limit Python and Arrow raise a MemoryError, a JVM says that there is insufficient memory,
and RocksDB and Polars end the process.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import psutil
import pytest

_LEAST_BYTES = 6 << 30
_SHARE = 3
"""A third of the machine: by default, a JVM takes up to a fourth."""


def limit_bytes() -> int:
    return max(_LEAST_BYTES, psutil.virtual_memory().total // _SHARE)


def limit() -> None:
    """Limit this process and what it starts. Other systems than Linux do not have this limit."""
    if sys.platform == "linux":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit_bytes()
        if soft == resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or wanted < hard):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


class Explanation:
    """A pytest plugin that says of a MemoryError, and of a process that ended within a test, what the limit is."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(MemoryError):
            report.sections.append(("memory", _text()))
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        failed = terminalreporter.stats.get("failed", [])
        if any(str(report.longrepr).startswith("worker ") for report in failed):
            terminalreporter.line(f"A process ended within a test. If it said nothing of a reason: {_text()}.")


def _text() -> str:
    return f"a process of the tests may have {limit_bytes() / (1 << 30):.1f} GB (tests/support/tools/memory.py)"
