"""Ends of a run by a drain or a stop, and the reports of them: counts, the log, the board, the job's folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock.container.shared import stores_directory
from penstock.drain.driver import Drain
from penstock.drain.report import DrainTally
from penstock.drain.requests import DRAIN, NAMESPACE
from penstock.drain.wing import DrainProgress, StageDrain, drain_board
from penstock.driver.feed.boundary import Boundary
from penstock.driver.job import Job
from penstock.errors import RetryableError
from penstock.graph.topology import plan_topology
from penstock.runtime.reports import Report
from penstock.state.restore import LocalCopies
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.hooked_store import Call
from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import TimedWorld, steps
from tests.support.world.waiting_job import PATHS, TASKS, Last, Waiting, application
from tests.support.world.world import ends

FIRED = ("panes-fired", "timers-fired", "without-partner")


job = fixture_of(Waiting)


def expected(job: Waiting, read: int = 0) -> list[tuple[int, int, int, int]]:
    """Messages, panes, timers and results of joins of each stage, if so many messages were read after the request."""
    count, panes = len(job.given), job.panes()
    out = panes + count + count
    return [(read, 0, 0, 0), (read, panes, count, count), (out, 0, 0, 0), (out + TASKS, 0, 0, 0)]


def counts(drain: DrainProgress | None) -> list[tuple[int, int, int, int]]:
    assert drain is not None
    return [(stage.messages, stage.panes, stage.timers, stage.joined) for stage in drain.stages]


LOGGERS = ("penstock.drain.driver", "penstock.drain.report")


def test_each_stage_counts_what_it_processes(job: Waiting, caplog: pytest.LogCaptureFixture) -> None:
    driver = job.waits()
    asked = str(job.ask_to_drain(driver).uuid)
    with caplog.at_level(logging.INFO):
        ends(driver)
    drain = driver.board.told("drain")
    assert counts(drain) == expected(job)
    assert drain is not None
    assert (drain.phase, drain.requests, drain.run_id) == ("drained", (asked,), driver.job.claim.run_id)
    assert [stage.names[-1] for stage in drain.stages] == ["other-by-key", "by-number", "out", "m.out"]
    assert all(stage.ended and not stage.left for stage in drain.stages)
    assert drain_board(job.objects, PATHS).get_of(drain.run_id) == drain
    said = [record.message for record in caplog.records if record.name.startswith(LOGGERS)]
    assert [line for line in said if line.endswith("nothing more is read from its inputs")] == said[:1]
    assert [line.partition(" (")[0] for line in said[1:5]] == [f"stage {number}" for number in range(4)]
    assert "messages, 5 panes" not in said[2] or job.panes() == 5
    assert f"{job.panes()} panes, 12 timers and 12 results of joins; it has drained" in said[2]
    (summary,) = said[5:]
    assert summary.startswith("the run has drained in ")
    assert f"{job.panes()} panes, 12 timers and 12 results of joins" in summary


def test_a_batch_that_runs_when_the_request_comes_counts(job: Waiting) -> None:
    """It is processed after the request."""
    driver = job.waits(6)
    job.put(6)

    def at(step: str) -> None:
        if step == "stage 1" and not driver.loop.parts.of(Drain).wants_step:
            job.ask_to_drain(driver)

    driver.runner.at = at
    ends(driver)
    assert counts(driver.board.told("drain")) == expected(job, read=6)


def test_batches_that_a_rewind_drops_do_not_count(job: Waiting) -> None:
    driver = job.waits()
    job.ask_to_drain(driver)
    driver.loop.step()
    assert driver.loop.boundary.closing == "drained"
    assert counts(driver.board.told("drain")) == expected(job)
    driver.fleet.lose(1)
    driver.loop.step()
    assert counts(driver.board.told("drain")) == [(0, 0, 0, 0)] * 4
    before = len(job.came())
    ends(driver)
    assert counts(driver.board.told("drain")) == expected(job)
    assert len(job.came()) == 2 * before, "panes are sent again"


def test_a_start_that_inherits_the_request_counts(job: Waiting) -> None:
    job.ask_to_drain(job.waits())
    second = job.started()
    ends(second)
    assert counts(second.board.told("drain")) == expected(job)


def test_a_drain_that_is_taken_back_shows_nothing(job: Waiting) -> None:
    driver = job.waits()
    job.ask_to_drain(driver)
    driver.loop.step()
    (asked,) = job.drains.find().notifications
    job.drains.cancel(asked, "somebody")
    driver.loop.step()
    assert driver.board.told("drain") is None
    job.put(3)
    while not driver.loop.boundary.batch > 1:
        driver.loop.step()
    job.ask_to_drain(driver)
    ends(driver)
    assert counts(driver.board.told("drain"))[0][0] in {0, 3}
    assert counts(driver.board.told("drain"))[1][1:] == (job.panes(), 15, 15)


def test_what_is_left_in_durable_streams_is_shown(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    timed_world.through = True
    timed_world.config["job.batch.max.messages"] = 1000
    timed_world.put(*range(100, 140))
    driver = timed_world.started()
    driver.loop.step()
    timed_world.ask_to_drain(driver)
    seen: list[tuple[int, list[bool]]] = []
    with caplog.at_level(logging.INFO):
        while not driver.loop.step():
            drain = driver.board.told("drain")
            assert drain is not None
            left = sum(each.left() for each in driver.loop.boundary.intermediate.values())
            assert sum(stage.left for stage in drain.stages) == left
            seen.append((left, [stage.ended for stage in drain.stages]))
        driver.loop.finish()
    assert max(seen)[0] == len(timed_world.given), "all waited in a stream"
    assert seen[-1] == (0, [True] * 3)
    assert not any(any(ended) for _, ended in seen[:-1]), "each stage has operators behind a stream"
    said = [record.message for record in caplog.records if "; it has drained" in record.message]
    assert [line.partition(" (")[0] for line in said] == ["stage 0", "stage 1", "stage 2"]
    assert set(timed_world.came()) == set(timed_world.given)


@pytest.mark.parametrize(("step", "said"), [("on_drain", "operator `last`"), ("sink", "output `m.out`")])
def test_it_says_what_it_waits_for(job: Waiting, step: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = job.waits()
    seen: list[str] = []

    def look() -> Any:
        if (now := driver.board.told("drain")) is not None:
            seen.append(now.waits_for)

    if step == "on_drain":
        monkeypatch.setattr(Last, "on_draining", staticmethod(look))
    else:
        writer = job.systems["m"].writer
        monkeypatch.setattr(job.systems["m"], "writer", lambda identity: look() or writer(identity))
    job.ask_to_drain(driver)
    ends(driver)
    assert seen
    assert all(said in each for each in seen)
    assert driver.board.told("drain") == driver.board.told("drain")


def stop(driver: InProcessDriver) -> None:
    """`job.stop()`, which SIGTERM and Ctrl-C call as well."""
    Job("waiting-1", driver.job.claim.run_id, driver.board, driver.stop).stop(wait=False)


def ask(driver: InProcessDriver) -> None:
    """`penstock stop`."""
    driver.stop.ask()


@pytest.mark.parametrize("stops", [stop, ask])
def test_a_stop_fires_nothing_and_the_next_run_goes_on(job: Waiting, stops: Callable[[InProcessDriver], None]) -> None:
    driver = job.waits()
    stores = set(job.checkpoints[-1].stores)
    stops(driver)
    ends(driver)
    assert (job.came(), job.checkpoints[-1].ended, set(job.checkpoints[-1].stores)) == ([], "stopped", stores)
    assert {"hours.window", "remind.timers", "pairs.join"} < stores
    assert [driver.board.metrics.snapshot().total(name) for name in FIRED] == [0, 0, 0]
    assert driver.board.told("drain") is None
    driver.close()
    again = job.started()
    job.ask_to_drain(again)
    ends(again)
    came = [str(each) for each in job.came() if each[0] != "drained"]
    assert set(came) == job.results(), "all of it was still there"
    assert len(came) == job.panes() + 2 * len(job.given), "and came once"


@pytest.mark.parametrize("drains", [False, True])
def test_copies_and_snapshots_are_finished(job: Waiting, *, drains: bool) -> None:
    """The last checkpoint covers them. Stores of windows, timers and joins are not restored any more."""
    job.config |= {"job.host-affinity.enabled": True, "state.snapshot.interval.commits": 1}
    driver = job.waits()
    job.put(6)
    steps(driver)  # what the last commit has
    if drains:
        job.ask_to_drain(driver)
    else:
        stop(driver)
    ends(driver)
    last = job.checkpoints[-1]
    assert last.ended == ("drained" if drains else "stopped")
    folder = stores_directory(driver.job.config, driver.job.uid)
    driver.close()
    for task in range(TASKS):
        assert LocalCopies(folder / "newest" / str(task)).ids() == [last.id]
    objects = job.objects.list(PATHS.store_folder("newest"))
    changes, snapshots = (
        {path.removesuffix(kind) for path in objects if path.endswith(kind)} for kind in (".delta", ".zip")
    )
    assert len(changes) == 2
    assert snapshots == changes, "one of each commit"
    assert ("hours.window" in last.stores) is not drains


def test_requests_that_stay_are_left_to_the_next_start(job: Waiting, caplog: pytest.LogCaptureFixture) -> None:
    """The run has drained: its record is in the log. `penstock status` shows them."""
    driver = job.waits()
    asked = str(job.ask_to_drain(driver).uuid)

    def fails(call: Call, key: str) -> None:
        if call == "delete" and f"/{NAMESPACE}/" in key:
            raise RetryableError("the store is away")

    job.store.before = fails
    ends(driver)
    job.store.heal()
    last = job.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered) == ("drained", (asked,))
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "the requests to drain were not deleted; the next start does it: the store is away" in warned
    assert [str(each.uuid) for each in job.drains.find().notifications] == [asked]
    assert driver.board.drained
    driver.close()
    job.put(3)
    again = job.started()
    while again.loop.boundary.batch == last.batch:
        again.loop.step()
    assert not again.loop.boundary.closed, "it drains no other run"
    assert job.drains.find().notifications == ()


class TestTally:
    """Counting alone."""

    def report(self, stage: int, messages: int) -> Report:
        panes = ("Partition 0", "operator.w", "panes-fired", "counter", (2,))
        return Report(stage, 0, "t", {}, messages=messages, metrics=[panes])

    def test_checkpoints_settle_and_rewinds_drop(self) -> None:
        tally = DrainTally(plan_topology(application().graph()))
        for batch in range(1, 2001):
            tally.add(batch, [self.report(1, 3)])
            tally.settle(batch - 2)
        assert len(tally._batches) == 2, "nothing grows"
        tally.rewind(1999)
        assert self.of(tally, 1) == (3 * 1999, 2 * 1999)
        tally.clear()
        assert self.of(tally, 1) == (0, 0)

    def of(self, tally: DrainTally, number: int) -> tuple[int, int]:
        stage: StageDrain = tally.stages(Boundary({}))[number]
        return stage.messages, stage.panes
