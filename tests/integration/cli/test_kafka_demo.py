"""`make demo-kafka` on a few flights, and that it leaves nothing behind when it is asked to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples.kafka import demo
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", "set by the demo")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "HOME", tmp_path)


@pytest.mark.slow
def test_the_demo_on_a_few_flights(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    small = ["--flights", "1500", "--batch", "200", "--rate", "100", "--seconds", "2"]
    monkeypatch.setattr(demo, "KINDS", ["broker"])  # other tests kill the rest
    monkeypatch.setattr(sys, "argv", ["demo", *small])
    demo.main()
    shown = capfd.readouterr().out
    assert "(broker)" in shown
    assert "verified: 1500 flights" in shown
    assert " messages exactly once" in shown
    assert re.search(r"verified: \d+ flights at 100 a second; .* [\d,]+ ms \(median\)", shown)


@pytest.mark.slow
def test_the_broker_is_stopped_when_the_demo_is_told_to_end(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from examples.kafka import demo; demo.HOME = Path(sys.argv.pop(1));"
        "demo.main()"
    )
    command = [sys.executable, "-c", script, str(tmp_path), "--flights", "100"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        assert any("flights are in the topic" in line for line in process.stdout)
        (broker,) = [child for child in psutil.Process(process.pid).children() if "kafka.Kafka" in child.cmdline()]
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 143
    assert not broker.is_running()
