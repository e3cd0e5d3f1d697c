"""Commits, and the parts of wings that fail in them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from penstock.driver.part import DriverPart
from penstock.errors import PenstockError
from penstock.outbox.driver import OutboxDriver
from penstock.standby.driver import StandbyDriver
from tests.support.world.sums_job import SumsWorld, drain
from tests.support.world.world import fixture_of

world = fixture_of(SumsWorld)


def test_a_part_that_cannot_begin_what_follows_a_record_ends_the_run(
    world: SumsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would wait for its commit otherwise, and never say why."""

    def fails(part: DriverPart, *args: object) -> Future[None]:
        raise PenstockError("it cannot begin")

    driver = world.driver()
    driver.loop.start()
    world.put(1, 2, 3)
    drain(driver)
    monkeypatch.setattr(StandbyDriver, "publish", fails)
    with pytest.raises(PenstockError, match="it cannot begin"):
        driver.loop.commit()
    assert [record.kind_detail for record in world.checkpoints] == ["start", "commit"]


def test_a_part_that_fails_after_a_record_keeps_nothing_else_from_being_told(
    world: SumsWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def fails(part: DriverPart, *args: object, **more: object) -> None:
        raise PenstockError("it cannot note that")

    def notes(part: DriverPart, record: Any, *args: object, **more: object) -> None:
        told.append(record.id)

    driver = world.driver()
    driver.loop.start()
    monkeypatch.setattr(OutboxDriver, "recorded", fails)
    monkeypatch.setattr(StandbyDriver, "recorded", notes)
    for number in range(3):
        world.put(number)
        drain(driver)
        driver.loop.commit()
    driver.close()
    assert told[-3:] == [record.id for record in world.checkpoints][-3:]
    assert "the wing `outbox` failed after checkpoint" in caplog.text


def test_a_part_that_fails_to_collect_keeps_no_other_garbage(
    world: SumsWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(part: DriverPart, *args: object) -> None:
        raise PenstockError("it cannot delete that")

    monkeypatch.setattr(OutboxDriver, "collect", fails)
    driver, collected = world.driver(), []
    monkeypatch.setattr(driver.job.admins, "collect", lambda epoch, *args, **more: collected.append(epoch))
    driver.loop.start()
    driver.close()
    assert collected == [driver.job.claim.epoch]
    assert "the wing `outbox` failed to collect after checkpoint" in caplog.text
