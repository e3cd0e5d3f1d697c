"""Windows at work: the demo on a few flights, and the window of the README as its commands run it, changed
between two runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.windows import demo
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEADLINE_S = 180.0
JFK = '{"airport": "JFK", "scheduled_ms": %d, "delay": 2}\n'


def test_the_demo_on_a_few_flights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", "set by the demo")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "HOME", tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo", "--flights", "2000"])
    demo.main()
    assert "verified: " in capfd.readouterr().out


def test_the_window_of_the_readme_changed_between_two_runs(tmp_path: Path) -> None:
    def call(*arguments: str, status: int = 0, given: str | None = None) -> str:
        """Standard output, or the error of a command that fails."""
        command = [sys.executable, "-m", "penstock.cli", *arguments]
        environment = {**os.environ, "PENSTOCK_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, input=given, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr if status else done.stdout

    def publish(scheduled_ms: int) -> None:
        call("stream", "publish", "takeoffs", "--file", "-", "--format", "jsonl", given=JFK % scheduled_ms)

    source = (ROOT / "examples/airport_hours.py").read_text(encoding="utf-8")
    (tmp_path / "airport_hours.py").write_text(source)
    run = ("run", "airport_hours.py:app", "--until", "latest")
    call("stream", "create", "takeoffs", "--partitions", "2")
    publish(1357035300000)
    call(*run, "--no-close")
    (tmp_path / "airport_hours.py").write_text(source.replace("tumbling(\n    HOUR_MS", "tumbling(\n    2 * HOUR_MS"))
    assert "--reset-operator hours" in call(*run, status=1)
    publish(1357036300000)
    call(*run, "--reset-operator", "hours")
    records = json.loads(call("checkpoint", "list", "airport-hours", "--json"))
    start = [record for record in records if record["kind"] == "start"][-1]
    shown = json.loads(call("checkpoint", "show", "airport-hours", start["id"], "--json"))
    assert shown["resetOperators"] == ["hours"]
    lines = call("stream", "tail", "takeoffs-by-hour", "--from-beginning", "--json").splitlines()
    panes = [json.loads(json.loads(line)["value"]) for line in lines]
    assert panes == [{"hour": 1357034400000, "flights": 1, "delay": 2.0}], "the first takeoff was dropped with its hour"
