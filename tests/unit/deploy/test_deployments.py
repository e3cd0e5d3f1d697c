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


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))])
def test_each_message_counts_once_whatever_dies_while_jobs_take_over_from_each_other(seed: int) -> None:
    world = DeployedWorld(seed, **EXACTLY_ONCE)
    world.live(120)
    world.finish()
    assert sorted_messages(world.read(TOTALS)) == sorted_messages(world.expected_totals())
    assert sorted_messages(world.read(PANES)) == sorted_messages(world.expected_panes())
