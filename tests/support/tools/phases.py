"""The end of `make test-all`: how many tests each phase ran, and what failed.

python -m tests.support.tools.phases FILE.xml ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

EXPECTED = 4
"""Phases. One that was killed has left no file."""


def main(paths: Sequence[Path]) -> int:
    """Print a line for each phase. Returns the exit status: 1 if a test failed, or a phase is missing."""
    bad = len(paths) != EXPECTED
    for path in paths:
        suite = ElementTree.parse(path).getroot()[0]
        tests, failures, errors, skipped = (int(suite.get(n, 0)) for n in ("tests", "failures", "errors", "skipped"))
        bad = bad or bool(failures or errors) or not tests
        minutes = float(suite.get("time", 0)) / 60
        print(f"{path.stem}: {tests} tests, {failures + errors} failed, {skipped} skipped, {minutes:.0f} minutes")
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                print(f"  {case.get('classname')}::{case.get('name')}")
    if len(paths) != EXPECTED:
        print(f"{len(paths)} of {EXPECTED} phases came to their end")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
