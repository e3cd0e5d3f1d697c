"""Seconds of each test file: the longest files run first, and the slices of the slow tests take as long as each other.

`tests/durations.json` is of what `make test` runs, and `tests/durations_slow.json` of the slow tests. `make durations`
and `make slow RECORD=--record-durations` write what the files of a run took, and leave other files alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.tools import deadline
from tests.support.tools.places import ROOT

QUICK = ROOT / "tests/durations.json"
SLOW = ROOT / "tests/durations_slow.json"
_LEAST_S = 0.5


class Recorder:
    """A pytest plugin that adds up the phases of all tests. With pytest-xdist, the controller hears of all of them."""

    def __init__(self, quick: Path = QUICK, slow: Path = SLOW) -> None:
        self._paths = {False: quick, True: slow}
        self._seconds = {is_slow: defaultdict[str, float](float) for is_slow in self._paths}
        self._left = set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds["slow" in report.keywords][file] += report.duration
        if deadline.is_left(report):
            self._left.add(file)

    def pytest_sessionfinish(self) -> None:
        for is_slow, path in self._paths.items():
            took = {file: each for file, each in self._seconds[is_slow].items() if file not in self._left}
            if took:
                write({**read(path), **took}, path)


def read(path: Path) -> dict[str, float]:
    """By file, relative to the repository; files that take no time worth mentioning are missing."""
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(seconds: dict[str, float], path: Path) -> None:
    """Without files that are gone and those that take no time worth mentioning."""
    found = {file: round(seconds[file], 1) for file in sorted(seconds) if (ROOT / file).exists()}
    found = {file: each for file, each in found.items() if each >= _LEAST_S}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the duration of those of their file; otherwise the order stays."""
    known = {False: read(QUICK), True: read(SLOW)}
    kinds = {(item.nodeid.partition("::")[0], item.get_closest_marker("slow") is not None) for item in items}
    seconds = defaultdict[str, float](float)
    for file, is_slow in kinds:
        seconds[file] += known[is_slow].get(file, 0.0)
    items.sort(key=lambda item: -seconds[item.nodeid.partition("::")[0]])
