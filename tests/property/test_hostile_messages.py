"""From the side of somebody who may write an input, a changelog or a value of a store: each serde that Penstock has
reads or refuses whatever comes, in a short time and little memory, and never ends the process.

A new serde fails here until `tests/support/faults/hostile_serdes.py` has it.
"""

from __future__ import annotations

import re

import pytest

from tests.support.processes.python import run_python

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("size", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_serde_is_harmed_by_any_message(size: int) -> None:
    ran = run_python("-X", "faulthandler", "-m", "tests.support.faults.hostile_serdes", str(size))
    assert re.fullmatch(r"\d{2} serdes have read \d{3} messages\n", ran.stdout), ran.stdout
