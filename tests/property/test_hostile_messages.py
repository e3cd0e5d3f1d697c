"""From the side of somebody who may write an input, a changelog or a value of a store: each serde that Penstock has
reads or refuses whatever comes, in a short time and little memory, and never ends the process.

A new serde fails here until `tests/support/faults/hostile_serdes.py` has it.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("size", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_serde_is_harmed_by_any_message(size: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.support.faults.hostile_serdes", str(size)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert re.fullmatch(r"\d{2} serdes have read \d{3} messages\n", ran.stdout), ran.stdout
