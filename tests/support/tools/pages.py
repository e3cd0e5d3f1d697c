"""The examples of pages of the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.tools.places import ROOT


def blocks(text: str, language: str = "python") -> list[str]:
    """The fenced blocks of a language."""
    return [
        found[1]
        for found in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if found[0] == language
    ]


def run_example(section: str, folder: Path, programs: dict[str, str] | None = None) -> tuple[str, str]:
    """Run a complete example in a folder: its files `job.py` and `job.yaml`, and its commands.

    Args:
        section: a part of a page with one block of commands and one of output, and at most one of Python and of YAML.
        folder: an empty folder.
        programs: further programs that the commands call, with their text.

    Returns:
        What the commands print, and the output on the page.
    """
    for name, language in (("job.py", "python"), ("job.yaml", "yaml")):
        for text in blocks(section, language):
            with (folder / name).open("x", encoding="utf-8") as file:  # fails for a second block
                file.write(text)
    (commands,), (output,) = blocks(section, "sh"), blocks(section, "")
    return run_commands(commands, folder, programs), output


def run_commands(commands: str, folder: Path, programs: dict[str, str] | None = None) -> str:
    """Run the commands of a block in a folder, as `run_example` does: what they print."""
    tools = folder / "tools"
    tools.mkdir()
    python = f"#!/bin/sh\nexec {shlex.quote(sys.executable)}"
    own = {"python": f'{python} "$@"\n', "penstock": f'{python} -m penstock.cli "$@"\n'}
    for name, text in {**own, **(programs or {})}.items():
        (tools / name).write_text(text, "utf-8")
        (tools / name).chmod(0o755)
    places = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PENSTOCK_HOME": str(folder / "home")}
    done = subprocess.run(
        ["sh", "-ec", commands],
        cwd=folder,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout
