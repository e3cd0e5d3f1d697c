"""One job takes over from another one: whatever dies on the way, one of them is in charge, and no message is lost or
sent twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.deployments import live
from tests.support.world.deployed_world import own_place


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_place(tmp_path, monkeypatch)


QUICK = (3, 4, 8)


@pytest.mark.parametrize(
    "life", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in range(20)]
)
def test_each_message_counts_once_whatever_dies_while_jobs_take_over_from_each_other(life: int) -> None:
    live(life)
