"""Random lives of a job's storage, with any number of tasks from time to time; `PENSTOCK_LIVES` sets how many (80 by
default), `PENSTOCK_LIFE` is the seed of one that is to be lived again."""

from __future__ import annotations

import os

import pytest

from tests.support.stores.random_life import live, no_pauses

PARTS = 40
QUICK = 1
LIVES = int(os.environ.get("PENSTOCK_LIVES", "80"))
MORE = 1000
STARTS = 4


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    no_pauses(monkeypatch)


@pytest.mark.parametrize(
    "part", [*range(QUICK), *(pytest.param(part, marks=pytest.mark.slow) for part in range(QUICK, PARTS))]
)
def test_every_retained_checkpoint_is_restorable_from_every_marker_it_holds(part: int) -> None:
    if (one := os.environ.get("PENSTOCK_LIFE")) is not None:
        live(int(one), STARTS)
        return
    for seed in range(part, LIVES, PARTS):
        live(seed, STARTS)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_more_lives(part: int) -> None:
    for seed in range(LIVES + part, LIVES + MORE, PARTS):
        live(seed, STARTS)
