"""Fixtures of the driver's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world.timed_job import TimedWorld


@pytest.fixture
def timed_world(tmp_path: Path) -> Iterator[TimedWorld]:
    """A job with event time, whose operators hold messages back until the watermark has passed them."""
    world = TimedWorld(tmp_path)
    yield world
    world.close()
