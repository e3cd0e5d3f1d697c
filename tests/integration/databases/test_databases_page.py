"""The first example of docs/databases.md runs as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tools.pages import run_example
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
_SQLITE = """#!/usr/bin/env python3
import sqlite3, sys

with sqlite3.connect(sys.argv[1]) as database:
    for row in database.execute(sys.argv[2]):
        print(*row, sep="|")
"""
"""The shell of SQLite, which not every host has."""


def test_the_complete_example(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "databases.md").read_text("utf-8")
    section = page.split("\n## ")[0].replace("/srv/shop", str(tmp_path))
    printed, shown = run_example(section, tmp_path, {"sqlite3": _SQLITE})
    assert printed.endswith(shown)
