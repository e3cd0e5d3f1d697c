"""The view of a run: drawn on a terminal that it has for itself, lines of a log anywhere else."""

from __future__ import annotations

import os
import pty
import sys

from tests.support.processes.python import run_python

SHOWN = "from penstock.cli.run import open_display; display = open_display(); display.close(); print(type(display))"
CHILD = (
    "import subprocess, sys\n"
    "for group in (None, 0):\n"
    "    subprocess.run([sys.executable, '-c', sys.argv[1]], process_group=group, check=True)\n"
)
"""A child in the group of the terminal's foreground, and one in its own, as a shell runs it with `&`."""


def test_a_job_in_the_background_does_not_draw_over_the_prompt() -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", CHILD, SHOWN])
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:
        pass  # its end, on Linux
    assert os.waitpid(pid, 0)[1] == 0
    assert shown.index(b"TerminalDisplay") < shown.index(b"LogDisplay")
    assert shown.count(b"TerminalDisplay") == 1


def test_a_pipe_gets_lines() -> None:
    done = run_python("-c", SHOWN)
    assert "LogDisplay" in done.stdout
