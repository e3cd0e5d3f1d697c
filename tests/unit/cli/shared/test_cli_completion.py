"""Completion in the shell, as the scripts that `penstock --show-completion` prints ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.job.paths import JobPaths
from tests.support.tools.cli import call, own_home

SLOW_TO_IMPORT = {"pyspark", "pyarrow", "numpy", "pandas", "rocksdict"}
SCRIPT = """
import atexit, sys
atexit.register(lambda: print(*{each.partition(".")[0] for each in sys.modules}, file=sys.stderr))
sys.argv = ["penstock"]
from penstock.cli.main import main
main()
"""


def complete(*words: str, shell: str = "bash") -> list[str]:
    """The proposals for the last word, which nothing slow was imported for."""
    variables = {
        "_PENSTOCK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(("penstock", *words)),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": " ".join(("penstock", *words)),
    }
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert set(done.stderr.split()) & SLOW_TO_IMPORT == set()
    assert "penstock" in done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two jobs."""
    home = own_home(tmp_path, monkeypatch)
    for name in ("flights", "shop-totals"):
        lease = home / "jobs" / JobPaths(name, "1").lease
        lease.parent.mkdir(parents=True)
        lease.touch()
    return home


def test_commands_and_options_are_completed() -> None:
    assert complete("sta") == ["status", "startpoint", "state"]
    assert complete("state", "s") == ["scan"]
    assert complete("run", "job.py:app", "--unt") == ["--until"]
    assert complete("ne", shell="zsh")[0].startswith('_arguments \'*: :(("new":"Make a folder')


def test_jobs_of_the_root_are_completed(home: Path, tmp_path: Path) -> None:
    assert complete("status", "") == ["flights-1", "shop-totals-1"]
    assert complete("checkpoint", "list", "sh") == ["shop-totals-1"]
    (tmp_path / "other.yaml").write_text(f"job.root: {tmp_path}/nothing")
    assert complete("dashboard", "flights-1", "sh") == ["shop-totals-1"]
    assert complete("status", "--config", "other.yaml", "") == [""]
    assert complete("status", "--config", "missing.yaml", "") == [""]
    assert complete("status", "-c", "job.root=s3://bucket/jobs", "") == [""]
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    assert f"complete_{shell}" in call("--show-completion")[0]


def test_bash_completes_with_its_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    (tmp_path / "script").write_text(call("--show-completion")[0])
    commands = 'source "$1"; COMP_WORDS=(penstock sta); COMP_CWORD=1; "$3" "$2"; echo "${COMPREPLY[@]}"'
    penstock = Path(sys.executable).with_name("penstock")
    done = subprocess.run(
        ["bash", "-c", commands, "bash", str(tmp_path / "script"), str(penstock), "_penstock_completion"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["status", "startpoint", "state"], done.stderr
