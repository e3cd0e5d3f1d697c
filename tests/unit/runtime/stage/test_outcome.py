"""The attempts that count, decided from reports alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

import penstock as ps
from penstock.errors import FailedMessage
from penstock.graph.topology import Topology, plan_topology
from penstock.runtime.messages.trailers import mark_of
from penstock.runtime.reports import Report
from penstock.runtime.stage.outcome import (
    InconsistentReports,
    JobFailed,
    SuccessfulBatch,
    UserCodeFailed,
    decide_outcome,
)

TASKS = 2
FAILED = FailedMessage("m.i", 0, 7, "k", "map-1", "ValueError: x", "Traceback ...")


def topology() -> Topology:
    app = ps.StreamApplication("a")
    out = app.output("m.o")
    app.input("m.i").partition_by(str).map(str).partition_by(str).map(str).send_to(out)
    return plan_topology(app.graph())


def reports() -> dict[tuple[int, int], Report]:
    """Stages 0, 1, 2 and the sink 3, two tasks each; everybody read everybody before."""
    made = {}
    for stage in range(4):
        for task in range(TASKS):
            read = {stage - 1: marks(stage - 1, *(f"{stage - 1}-{t}" for t in range(TASKS)))} if stage else {}
            made[stage, task] = Report(stage, task, f"{stage}-{task}", read, messages=10 * stage + task)
    return made


def marks(stage: int, *tokens: str) -> int:
    return mark_of(stage, enumerate(tokens))


def decide(made: dict[tuple[int, int], Report]) -> object:
    return decide_outcome(made.values(), topology(), TASKS)


def test_success_names_the_tokens_of_the_container_stages() -> None:
    made = reports()
    made[3, 0] = replace(made[3, 0], written={"m.o": 3, "m.p": 1}, commit=True)
    made[3, 1] = replace(made[3, 1], written={"m.o": 4})
    made[1, 1] = replace(made[1, 1], dead_letters=2, shutdown=True)
    outcome = decide(made)
    assert outcome == SuccessfulBatch(
        tokens={0: {1: "1-0", 2: "2-0"}, 1: {1: "1-1", 2: "2-1"}},
        messages_in=0 + 1,
        messages_out=8,
        written={"m.o": 7, "m.p": 1},
        dead_letters=2,
        commit=True,
        shutdown=True,
    )


def test_the_order_of_reports_does_not_matter() -> None:
    made = list(reports().values())
    assert decide_outcome(made, topology(), TASKS) == decide_outcome(reversed(made), topology(), TASKS)


@pytest.mark.parametrize("place", [(s, t) for s in range(4) for t in range(TASKS)])
def test_a_missing_report_is_refused(place: tuple[int, int]) -> None:
    made = reports()
    del made[place]
    outcome = decide(made)
    assert isinstance(outcome, InconsistentReports)
    assert f"stage {place[0]} task {place[1]} did not report" in outcome.reason


@pytest.mark.parametrize("place", [(s, t) for s in range(4) for t in range(TASKS)])
def test_a_second_report_is_refused(place: tuple[int, int]) -> None:
    made = [*reports().values(), reports()[place]]
    outcome = decide_outcome(made, topology(), TASKS)
    assert isinstance(outcome, InconsistentReports)
    assert "reported twice" in outcome.reason


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_shuffle_fetch_fails_after_one_consumer_read_the_old_rows(stage: int) -> None:
    """The stage before was run again: task 0 had read the old attempt's rows, task 1 the new one's."""
    made = reports()
    made[stage, 0] = replace(made[stage, 0], read={stage - 1: marks(stage - 1, "old", f"{stage - 1}-1")})
    outcome = decide(made)
    assert isinstance(outcome, InconsistentReports)
    assert f"stage {stage} task 0 did not read exactly the attempts of stage {stage - 1} that" in outcome.reason


def test_inconsistent_reports_hide_failures_which_may_belong_to_a_dead_attempt() -> None:
    made = reports()
    made[1, 0] = replace(made[1, 0], read={0: marks(0, "old", "0-1")}, failed=FAILED)
    assert isinstance(decide(made), InconsistentReports)


def test_a_failure_before_anything_was_read_is_a_failure() -> None:
    made = reports()
    made[2, 0] = replace(made[2, 0], read={}, error=("NotFoundError", "gone"))
    assert decide(made) == JobFailed("NotFoundError", "gone")


def test_the_first_failure_by_stage_is_the_cause() -> None:
    made = reports()
    made[1, 1] = replace(made[1, 1], failed=FAILED)
    made[2, 0] = replace(made[2, 0], error=("NotFoundError", "gone"))
    made[3, 0] = replace(made[3, 0], upstream_failed=True)
    assert decide(made) == UserCodeFailed(FAILED)
    made[0, 1] = replace(made[0, 1], error=("NotFoundError", "a range is gone"))
    assert decide(made) == JobFailed("NotFoundError", "a range is gone")


def test_a_failure_upstream_that_nobody_reports_is_not_success() -> None:
    made = reports()
    made[2, 0] = replace(made[2, 0], upstream_failed=True)
    assert isinstance(decide(made), InconsistentReports)


@pytest.mark.parametrize("read", [{}, {1: marks(1, "1-0")}])
def test_a_report_that_did_not_read_every_source_is_refused(read: dict[int, int]) -> None:
    made = reports()
    made[2, 0] = replace(made[2, 0], read=read)
    assert isinstance(decide(made), InconsistentReports)


@pytest.mark.parametrize("read", [{9: marks(9, "9-0")}, {1: marks(1, "1-0", "1-1", "1-2")}])
def test_a_report_that_read_what_does_not_exist_is_refused(read: dict[int, int]) -> None:
    made = reports()
    made[2, 0] = replace(made[2, 0], read=read)
    assert isinstance(decide(made), InconsistentReports)


def test_a_report_round_trips() -> None:
    for report in (
        Report(1, 2, "t", {0: marks(0, "a", "b")}, 5, 1, {"m.o": 3}, commit=True, shutdown=True, failed=FAILED),
        Report(1, 2, "t", {}, error=("FencedError", "stop"), upstream_failed=True),
    ):
        assert Report.decode(bytes(report.packet().payload or b"")) == report
