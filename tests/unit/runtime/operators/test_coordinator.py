"""coordinator: commit and shutdown requests."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.runtime.reports import Report, SuccessfulBatch, decide_outcome
from penstock.testing import TestRunner


class Asks(ps.StreamTask):
    """Asks for what the value says."""

    def process(self, envelope: Any, collector: Any, coordinator: ps.TaskCoordinator) -> None:
        if envelope.value in ("commit", "shutdown"):
            getattr(coordinator, envelope.value)()
        if envelope.value == "shutdown, fail":
            coordinator.shutdown()
            raise ValueError("failed")


def runner_of(*, dead_letter: str | None = None) -> TestRunner:
    app = ps.StreamApplication("a")
    app.input("m.in").process(Asks)
    return TestRunner(app, partitions=2, dead_letter=dead_letter)


def outcome_of(runner: TestRunner) -> SuccessfulBatch:
    driver = runner._running()
    reports: list[Report] = []
    run = driver.runner.run

    def noted(*args: Any) -> Any:
        reports.extend(run(*args))
        return reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.runner, "run", noted)
        runner.run()
    outcome = decide_outcome(reports, driver.job.topology, 2)
    assert isinstance(outcome, SuccessfulBatch)
    return outcome


def test_requests_of_any_task_reach_the_driver_once() -> None:
    runner = runner_of()
    for value, expected in (("x", (False, False)), ("commit", (True, False)), ("shutdown", (False, True))):
        outcome = outcome_of(runner.input("m.in", [value], partition=1))
        assert (outcome.commit, outcome.shutdown) == expected
    outcome = outcome_of(runner.input("m.in", ["x"], partition=0))
    assert (outcome.commit, outcome.shutdown) == (False, False)


def test_the_job_stops_after_the_batch() -> None:
    runner = runner_of().input("m.in", ["x", "x", "shutdown", "x", "x", "x"], partition=0).run(batch_messages=2)
    assert sorted(runner._running().loop.boundary.positions.values()) == [0, 4]


def test_a_request_of_a_message_that_became_a_dead_letter_is_undone() -> None:
    runner = runner_of(dead_letter="m.dead")
    outcome = outcome_of(runner.input("m.in", ["shutdown, fail"]))
    assert (outcome.dead_letters, outcome.shutdown) == (1, False)
