"""Commits: when one is due, and the parts of wings that fail in them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from penstock.driver.commit.schedule import CommitDecision, CommitFacts, CommitPolicy
from penstock.driver.part import DriverPart
from penstock.errors import PenstockError
from penstock.outbox.driver import OutboxDriver
from penstock.standby.driver import StandbyDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import SumsWorld, drain, drain_and_commit

world = fixture_of(SumsWorld)


def test_a_part_that_cannot_begin_what_follows_ends_the_run(world: SumsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would wait for its commit otherwise, and never say why."""

    def fails(part: DriverPart, *args: object) -> Future[None]:
        raise PenstockError("it cannot begin")

    driver = world.started()
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

    driver = world.started()
    monkeypatch.setattr(OutboxDriver, "recorded", fails)
    monkeypatch.setattr(StandbyDriver, "recorded", notes)
    for number in range(3):
        world.put(number)
        drain_and_commit(driver)
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


POLICY = CommitPolicy(every_ms=1000, max_delay_ms=500, max_pending_bytes=100)
QUIET = CommitFacts(requested=False, since_last_ms=0, new_batches=True, in_flight_ms=None, pending_bytes=0)


@pytest.mark.parametrize(
    ("changed", "decision"),
    [
        ({}, CommitDecision.NOT_DUE),
        ({"since_last_ms": 999.9}, CommitDecision.NOT_DUE),
        ({"since_last_ms": 1000}, CommitDecision.BEGIN),
        ({"since_last_ms": 5000, "new_batches": False}, CommitDecision.NOT_DUE),
        ({"requested": True, "new_batches": False}, CommitDecision.BEGIN),
        ({"requested": True, "in_flight_ms": 499}, CommitDecision.SKIP),
        ({"requested": True, "in_flight_ms": 499, "pending_bytes": 99}, CommitDecision.SKIP),
        ({"requested": True, "in_flight_ms": 499, "pending_bytes": 100}, CommitDecision.WAIT),
        ({"requested": True, "in_flight_ms": 500}, CommitDecision.WAIT),
        ({"since_last_ms": 1000, "in_flight_ms": 0}, CommitDecision.SKIP),
        ({"in_flight_ms": 5000, "pending_bytes": 1000}, CommitDecision.NOT_DUE),
        ({"wanted": True, "new_batches": False, "since_last_ms": 10_000}, CommitDecision.BEGIN),
        ({"wanted": True, "new_batches": False, "since_last_ms": 9_999}, CommitDecision.NOT_DUE),
        ({"wanted": True, "new_batches": False, "since_last_ms": 10_000, "in_flight_ms": 0}, CommitDecision.NOT_DUE),
    ],
)
def test_decisions(changed: dict[str, object], decision: CommitDecision) -> None:
    assert POLICY.decide(replace(QUIET, **changed)) is decision  # type: ignore[arg-type]


@pytest.mark.parametrize("every_ms", [0, -1])
def test_without_an_interval_only_the_application_asks(every_ms: int) -> None:
    policy = replace(POLICY, every_ms=every_ms)
    assert policy.decide(replace(QUIET, since_last_ms=10**9)) is CommitDecision.NOT_DUE
    assert policy.decide(replace(QUIET, since_last_ms=10**9, wanted=True)) is CommitDecision.NOT_DUE
    assert policy.decide(replace(QUIET, requested=True)) is CommitDecision.BEGIN
