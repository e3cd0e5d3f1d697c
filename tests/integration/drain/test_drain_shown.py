"""A drain at work: its demo on a few flights, and the commands of its page as they are written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.drain import demo
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEADLINE_S = 180.0


def test_the_demo_on_a_few_flights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", "set by the demo")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "HOME", tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo", "--flights", "2000"])
    demo.main()
    output = capfd.readouterr().out
    assert "the window of operator `hours` is in checkpoint" in output
    assert "has drained" in output
    assert "verified: 1,988 departures, each counted once by the two versions together" in output


class Shell:
    """Commands in a folder, with a separate Penstock home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PENSTOCK_HOME": str(folder / "home"), "PATH": path}

    def call(self, command: str) -> str:
        """Standard output of a command that succeeds."""
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, command + done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[Path]:
        """Run a command beside others, which end it; the file with what it logs."""
        log = self.folder / "log.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(command.split(), cwd=self.folder, env=self.environment, stderr=out)
        try:
            yield log
            assert process.wait(DEADLINE_S) == 0, log.read_text("utf-8")
        finally:
            process.kill()
            process.wait()


def await_text(log: Path, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in log.read_text("utf-8"):
        assert time.monotonic() < deadline, log.read_text("utf-8")
        time.sleep(0.1)


def test_the_commands_of_the_page_as_they_are_written(tmp_path: Path) -> None:
    page = (ROOT / "docs/drain.md").read_text("utf-8").split("\n## ")[0]
    (create, run), (publish,), (drain, tail), (again,) = (
        block.splitlines() for block in re.findall(r"\n\n```sh\n(.*?)```\n", page, re.DOTALL)
    )
    (before,), (after,) = (re.findall(rf"\n[{sign}]    (.*)", page) for sign in "-+")
    shell, program = Shell(tmp_path), tmp_path / "examples/airport_hours.py"
    program.parent.mkdir()
    source = (ROOT / "examples/airport_hours.py").read_text("utf-8")
    assert source.count(f"    {before}") == 1
    program.write_text(source, "utf-8")
    shell.call(create)
    with shell.running(run) as log:
        shell.call(publish)
        await_text(log, "running, 1 message")
        assert "has drained" in shell.call(drain)
    assert [pane["flights"] for pane in panes(shell, tail)] == [1]
    program.write_text(source.replace(before, after), "utf-8")
    with shell.running(again) as log:
        shell.call(publish.replace("1357035300000", "1357038900000"))
        await_text(log, "running, 1 message")
        shell.call(drain)
    later = {"hour": 1357034400000, "flights": 1, "delay": 2.0}
    assert panes(shell, tail) == [later, later], "the second one has the later hour as well"


def panes(shell: Shell, tail: str) -> list[dict[str, float]]:
    return [json.loads(json.loads(line)["value"]) for line in shell.call(f"{tail} --json").splitlines()]
