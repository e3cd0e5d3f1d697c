"""What a type checker says of a user's program: mistakes are found, and what is right passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from pathlib import Path
from typing import Literal

import penstock as ps

app = ps.StreamApplication("typed")
until: Literal["latest"] | None = None
job: ps.Job = app.run({"spark.master": "local[2]"}, until=until)
app.run("job.yaml", spark=None, until="latest", from_checkpoint="1-1")
app.run(Path("job.properties"))
app.run(untill="latest")  # error: call-arg
app.run(until="yesterday")  # error: arg-type
app.run(from_checkpoint=5)  # error: arg-type
app.run(5)  # error: arg-type
"""


def test_mypy_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[2]
    )
    found = {
        (int(line), code)
        for line, code in re.findall(r"program\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    }
    expected = {
        (number, line.rpartition("# error: ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    assert found == expected, done.stdout + done.stderr
