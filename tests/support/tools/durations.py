"""Seconds of each test file, from `tests/durations.json`: the longest files run first.

`make durations` measures them: `--record-durations` writes what the files of a run took, and leaves other files alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.tools.places import ROOT

PATH = ROOT / "tests/durations.json"
_LEAST_S = 0.5


class Recorder:
    """A pytest plugin that adds up the phases of all tests. With pytest-xdist, the controller hears of all of them."""

    def __init__(self, path: Path = PATH) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = {**read(self._path), **self._seconds}
        found = {file: round(known[file], 1) for file in sorted(known) if (ROOT / file).exists()}
        found = {file: seconds for file, seconds in found.items() if seconds >= _LEAST_S}
        self._path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(path: Path = PATH) -> dict[str, float]:
    """By file, relative to the repository; files that take no time worth mentioning are missing."""
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the duration of their file; otherwise the order stays."""
    seconds = {ROOT / file: duration for file, duration in read().items()}
    items.sort(key=lambda item: -seconds.get(item.path, 0.0))
