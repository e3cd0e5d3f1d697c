"""Demonstrations run as they are shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.windows import demo
from tests.support.processes.python import PENSTOCK, run_python
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import importlib, sys
from pathlib import Path

from examples import running

running.DEADLINE_S = 600  # other tests run beside it
demo = importlib.import_module(f"examples.{sys.argv.pop(1)}.demo")
demo.HOME = Path(sys.argv.pop(1))
demo.main()
"""
DEMOS = {
    "demo": ("flights --flights 2000", "verified: the totals of 2,000 flights"),
    "demo ENGINE=columns": ("flights --flights 45000 --engine columns", "verified: 45000 flights"),
    "demo BACKUP=blob,changelog-stream": (
        "flights --flights 2000 --backup blob,changelog-stream",
        "verified: the totals of 2,000 flights",
    ),
    "demo-crash": ("flights --flights 60000 --crash --kills 2", "verified: the totals of 60,000 flights"),
    "demo-windows": ("windows --flights 3000", "verified: "),
    "demo-windows-crash": ("windows --flights 120000 --crash", "verified: "),
    "demo-drain": ("drain --flights 6000", "verified: "),
    "demo-deploy": ("deploy --flights 12000", "verified: "),
    "demo-enrich": ("enrich --flights 20000", "verified: "),
    "demo-enrich-crash": ("enrich --flights 40000 --crash", "verified: "),
}
"""By what follows `make`."""
DEADLINE_S = 850


def command(words: str, home: Path) -> list[str]:
    name, *arguments = words.split()
    return [sys.executable, "-c", SCRIPT, name, str(home), *arguments]


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo(name: str, tmp_path: Path) -> None:
    words, verdict = DEMOS[name]
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        command(words, tmp_path / "home"), cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict in done.stdout


def test_a_demo_with_its_page_ends_with_ctrl_c(tmp_path: Path) -> None:
    """`make demo DASHBOARD=1`, in a terminal: all of its processes get the signal."""
    words = "flights --flights 2000 --dashboard"
    home = tmp_path / "home"
    home.mkdir()
    with subprocess.Popen(
        command(words, home),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "stays until Ctrl-C" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        assert process.wait(120) == 0
    assert "verified: the totals of 2,000 flights" in "".join(printed)


@pytest.mark.parametrize("name", DEMOS)
def test_make_runs_the_demo(name: str) -> None:
    told = subprocess.run(["make", "-n", *name.split()], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    module, *arguments = DEMOS[name][0].split()
    assert f"-m examples.{module}.demo" in told
    options = [each for each in arguments if each.startswith("--") and each not in {"--flights", "--kills"}]
    assert all(each in told for each in options)


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
        environ = {"PENSTOCK_HOME": str(tmp_path / "home")}
        done = run_python(*PENSTOCK, *arguments, folder=tmp_path, environ=environ, given=given, status=status)
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
