"""Fixtures of the driver's tests."""

from __future__ import annotations

from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import TimedWorld

timed_world = fixture_of(TimedWorld)
"""A job with event time, whose operators hold messages back until the watermark has passed them."""
