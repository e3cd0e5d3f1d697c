"""What shows that a drain works: its demo on a few flights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.drain import demo
from tests.support.places import ROOT

pytestmark = pytest.mark.spark


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
