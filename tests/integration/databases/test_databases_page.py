"""The complete example of docs/databases.md runs as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tools.places import ROOT

pytestmark = pytest.mark.spark
_SQLITE = f"""#!{sys.executable}
import sqlite3, sys

with sqlite3.connect(sys.argv[1]) as database:
    for row in database.execute(sys.argv[2]):
        print(*row, sep="|")
"""
"""The shell of SQLite, which not every host has."""


def test_the_complete_example(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "databases.md").read_text("utf-8")
    section = page.split("## A complete example\n")[1].split("\n## ")[0].replace("/srv/shop", str(tmp_path))
    blocks = dict(re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL))
    assert sorted(blocks) == ["", "python", "sh", "yaml"]
    (tmp_path / "job.py").write_text(blocks["python"], "utf-8")
    (tmp_path / "job.yaml").write_text(blocks["yaml"], "utf-8")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sqlite3", _SQLITE), ("penstock", f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')):
        (tools / name).write_text(text, "utf-8")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-ec", blocks["sh"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PENSTOCK_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    assert done.stdout.endswith(blocks[""])
