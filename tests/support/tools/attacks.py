"""The results of the tests from an attacker's side, a line each, at the end of `make attack`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest


@dataclass(slots=True)
class Attack:
    """The results of a test's cases."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: set[str] = field(default_factory=set)
    """Why cases were skipped."""

    @property
    def result(self) -> str:
        if self.failed:
            return "NOT held"
        return "held" if self.passed else "skipped"

    @property
    def details(self) -> str:
        cases = self.passed + self.failed + self.skipped
        parts = [f"{cases} cases"] if cases > 1 else []
        parts += [f"{self.failed} not held"] if self.failed and cases > 1 else []
        parts += [f"{self.skipped} skipped: {'; '.join(sorted(self.reasons))}"] if self.skipped else []
        return f" ({', '.join(parts)})" if parts else ""


class Reporter:
    """A pytest plugin. With pytest-xdist, the controller hears of all tests."""

    def __init__(self) -> None:
        self._attacks: dict[str, Attack] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        attack = self._attacks.setdefault(report.nodeid.partition("[")[0], Attack())
        if report.failed:
            attack.failed += 1
        elif report.skipped:
            attack.skipped += 1
            attack.reasons.add(_reason(report))
        elif report.when == "call":
            attack.passed += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        who = "another user of this host, `nobody`" if os.geteuid() == 0 else "this user: only root can be another one"
        terminalreporter.section("attacks")
        terminalreporter.line(f"Where it matters who attacks, it is {who}.")
        for test, attack in sorted(self._attacks.items()):
            file, _, name = test.partition("::")
            words = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            terminalreporter.line(f"{attack.result:9}{words}{attack.details}   {file}")
        found = [attack.result for attack in self._attacks.values()]
        counts = ", ".join(f"{found.count(result)} {result}" for result in ("held", "NOT held", "skipped"))
        terminalreporter.line(f"{len(found)} attacks: {counts}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
