"""One job takes over from another one: whatever dies on the way, one of them is in charge, and no message is lost or
sent twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tools.cli import own_home
from tests.support.world.deployed_world import PANES, TOTALS, DeployedWorld, sorted_messages

EXACTLY_ONCE = {f"streams.local.{stream}.output.guarantee": "exactly-once" for stream in (TOTALS, PANES)}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)


DELAYS: tuple[dict[str, int], ...] = ({"one": 5000}, {}, {"two": 5000})
QUICK = (3, 4, 8)


@pytest.mark.parametrize(
    "life", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in range(20)]
)
def test_each_message_counts_once_whatever_dies_while_jobs_take_over_from_each_other(life: int) -> None:
    world = DeployedWorld(life, DELAYS[life % 3], **EXACTLY_ONCE)
    world.live(120)
    world.finish()
    assert sorted_messages(world.read(TOTALS)) == sorted_messages(world.expected_totals())
    assert sorted_messages(world.read(PANES)) == sorted_messages(world.expected_panes())
