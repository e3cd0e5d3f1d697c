"""A job on the whole screen of a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.watch import screen_of
from penstock.dashboard.view import job_document
from tests.support.jobs.example_job import ExampleJob
from tests.support.tools.cli import command
from tests.unit.dashboard.test_view import large


def drawn(page: dict[str, object], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False)
    console.print(screen_of(page, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 200])
def test_a_large_job(width: int) -> None:
    text = drawn(job_document(large()), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "Behind: 0 messages a second" in text
    assert text.index("Inputs, as of") < text.index("Stores")


def test_names_are_no_markup() -> None:
    assert "[red]a[/red]" in drawn({"error": "there is no job `[red]a[/red]`"})


def test_control_characters_do_nothing() -> None:
    assert "\x1b" not in drawn({"error": "\x1b]0;owned\x07\x1b[2J"})


def test_a_job_that_does_not_run_stays_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    ExampleJob(tmp_path / "home", tmp_path / "kept")
    own, other = pty.openpty()
    with os.fdopen(own, "rb", buffering=0) as terminal:
        made = subprocess.Popen(command("status", "flights", "--watch"), stdin=other, stdout=other, stderr=other)
        os.close(other)
        shown = b""
        while True:
            try:
                shown += terminal.read(65536)
            except OSError:  # the program has ended
                break
        assert made.wait() == 0
    screen, _, after = shown.decode().partition("\x1b[?1049l")  # the end of the other screen
    assert "Not running" in screen
    assert "status" in after
    assert "not running: no driver has the lease" in after
