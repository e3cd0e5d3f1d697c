"""docs/metrics.md lists exactly what a job exports: here on containers of this process, without their memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.metrics.snapshot import SAMZA_NAMES, Snapshot
from tests.support.oracles.metrics_page import (
    OF_EVENT_TIME,
    OF_LOSSES,
    OF_OPERATORS,
    OF_OUTBOXES,
    OF_PUSHED_TABLES,
    OF_SIDE_INPUTS,
    OF_STANDBYS,
    OF_THE_DIRECT_WAY,
    OF_TIME_TO_LIVE,
    PAGE,
    Documented,
    differences,
    documented,
    exported,
)
from tests.support.world.sums_job import SumsWorld, drain, drain_and_commit

OF_PROCESSES: Documented = ("container", "physical-memory-bytes", "gauge")
OF_OTHERS = (
    {OF_PROCESSES}
    | OF_EVENT_TIME
    | OF_LOSSES
    | OF_OPERATORS
    | OF_OUTBOXES
    | OF_TIME_TO_LIVE
    | OF_PUSHED_TABLES
    | OF_STANDBYS
    | OF_THE_DIRECT_WAY
    | OF_SIDE_INPUTS
)
"""Metrics that this job does not export."""


@pytest.fixture
def page() -> str:
    return PAGE.read_text("utf-8")


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Snapshot]:
    with closing(SumsWorld(tmp_path)) as world:
        driver = world.started(stores_sums_factory="rocksdb")
        world.put(*range(1, 10))
        drain_and_commit(driver)
        driver.fleet.lose(0)
        drain(driver)
        driver.loop.step()
        yield driver.board.metrics.snapshot()


def test_the_page_lists_what_a_job_exports(page: str, found: Snapshot) -> None:
    assert differences(page, exported(found) | OF_OTHERS) == []


def test_what_is_left_out_of_the_page_or_new_in_the_code_is_noticed(page: str, found: Snapshot) -> None:
    of_the_job = exported(found) | OF_OTHERS
    rows = documented(page)
    assert len(rows) == len(of_the_job) > 40
    for kind, name, what in rows:
        row = re.search(rf"^\| `{re.escape(name)}` \| {what} \|.*\n", page.partition(f"\n### `{kind}")[2], re.MULTILINE)
        assert row is not None
        section, _, rest = page.partition(f"\n### `{kind}")
        without = f"{section}\n### `{kind}{rest.replace(row[0], '', 1)}"
        assert differences(without, of_the_job) == [f"{(kind, name, what)} is not documented"]
        assert differences(page, of_the_job - {(kind, name, what)}) == [f"{(kind, name, what)} is not exported"]
    new = ("store", "new", "counter")
    assert differences(page, {*of_the_job, new}) == [f"{new} is not documented"]


def test_the_page_lists_samzas_names(page: str) -> None:
    section = page.partition("\n## Samza's snapshots\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z]+)` `([^`]+)` \| `([^`]+)` \| `([^`]+)`", section, re.MULTILINE)
    listed = {(kind, name): (group, own.replace("<store>", "{subject}")) for kind, name, group, own in rows}
    assert listed == SAMZA_NAMES
