"""Fixtures of the driver's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime.operators.table import OPERATORS
from tests.support.world.timed_job import Hold, HoldSpec, TimedWorld


@pytest.fixture
def timed_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TimedWorld]:
    """A job with event time, whose operators hold messages back until the watermark has passed them."""
    monkeypatch.setitem(OPERATORS, HoldSpec, Hold)
    world = TimedWorld(tmp_path)
    yield world
    world.close()
