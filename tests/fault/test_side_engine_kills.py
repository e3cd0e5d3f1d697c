"""`kill -9` of what writes a side store, at any moment: afterwards, entries and positions are of one moment."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.faults import side_writer
from tests.support.tools.places import ROOT


@pytest.mark.parametrize("kills", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_what_is_left_is_the_replay_of_the_steps_before_its_positions(tmp_path: Path, kills: int) -> None:
    chance, before = random.Random(kills), 0
    folder = tmp_path / "store"
    for seed in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faults.side_writer", str(folder), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        time.sleep(chance.uniform(0.0, 0.4))  # into some part of a write
        writer.kill()
        writer.wait()
        writer.stdout.close()
        engine = side_writer.open_engine(folder)
        steps = side_writer.reached(engine)
        assert steps >= before, "what an earlier life flushed is there"
        assert dict(engine.scan(None, None)) == side_writer.replay(steps)
        # A life that had no time for a file loses what it wrote.
        engine.close()
        before = steps
    assert before > 1000
