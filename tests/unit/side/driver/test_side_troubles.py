"""The driver's log about side inputs that fail while the run continues."""

from __future__ import annotations

import logging

import pytest

from penstock.side.driver import REPEAT_SECONDS, SideTroubles
from penstock.side.wing import SideState


def test_a_trouble_is_logged_when_it_begins_each_minute_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    troubles = SideTroubles(lambda failed: failed)
    logged = []
    for texts, now in [((), 0), (("a",), 1), (("a",), 2), (("a", "b"), 3), (("a", "b"), 1 + REPEAT_SECONDS), ((), 100)]:
        caplog.clear()
        troubles.look([SideState(troubles=texts)], float(now))
        logged.append([(record.levelname, record.getMessage().rpartition(": ")[2]) for record in caplog.records])
    again = [("WARNING", "side inputs fill their stores again")]
    assert logged == [[], [("ERROR", "a")], [], [("ERROR", "b")], [("ERROR", "a")], again]
