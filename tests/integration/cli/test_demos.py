"""The demos of `make` on a few flights, as docs/demos.md lists them. Those on Kafka and of PySpark have other files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
