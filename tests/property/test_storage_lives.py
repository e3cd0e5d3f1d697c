"""Random lives of a job's storage, with any number of tasks from time to time; `PENSTOCK_LIVES` sets how many (80 by
default), `PENSTOCK_LIFE` is the seed of one that is to be lived again."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.admin.checkpoint import change
from penstock.driver.commit import coordinator
from penstock.state import outside_backup, restore
from penstock.state.backends import base_backup
from penstock.state.backends.changelog_files import backup
from tests.support.stores.random_life import Life

PARTS = 20
QUICK = 2
LIVES = int(os.environ.get("PENSTOCK_LIVES", "80"))
MORE = 1000
STARTS = 4


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_RESTORE", replace(restore._RESTORE, pause_s=0.001))
    monkeypatch.setattr(coordinator, "_APPEND", replace(coordinator._APPEND, pause_s=0.001))
    monkeypatch.setattr(coordinator, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(change, "_APPEND", replace(change._APPEND, pause_s=0.001))
    monkeypatch.setattr(outside_backup, "_UPLOAD", replace(outside_backup._UPLOAD, pause_s=0.001))
    monkeypatch.setattr(outside_backup, "_BASE_POLL_S", 0.001)
    monkeypatch.setattr(base_backup, "SMALL_BASE_SECONDS", 0.0)
    monkeypatch.setattr(backup, "_BASE", replace(backup._BASE, pause_s=0.001))
    monkeypatch.setattr("penstock.container.epoch.commit._BASE_POLL_SECONDS", 0.001)


def live(seed: int) -> None:
    """One life; a failure names its seed."""
    with tempfile.TemporaryDirectory(prefix="penstock-life-") as folder:
        life = Life(seed, Path(folder))
        try:
            life.live(STARTS)
        except BaseException as error:
            story = "\n".join(life.story)
            raise AssertionError(f"PENSTOCK_LIFE={seed} lives it again:\n{story}\n{error!r}") from error


@pytest.mark.parametrize(
    "part", [*range(QUICK), *(pytest.param(part, marks=pytest.mark.slow) for part in range(QUICK, PARTS))]
)
def test_every_retained_checkpoint_is_restorable_from_every_marker_it_holds(part: int) -> None:
    if (one := os.environ.get("PENSTOCK_LIFE")) is not None:
        live(int(one))
        return
    for seed in range(part, LIVES, PARTS):
        live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_more_lives(part: int) -> None:
    for seed in range(LIVES + part, LIVES + MORE, PARTS):
        live(seed)
