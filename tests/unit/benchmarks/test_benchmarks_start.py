"""The benchmarks of starts and small batches: how they count."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import floor, side_floor, start


def test_a_side_is_compared_with_the_bare_session_of_its_round() -> None:
    rounds = {
        "bare": [{"moments": {"session": s, "a task": s + 1}} for s in (5.0, 9.0, 6.0)],
        "penstock": [{"moments": {"first commit": s}} for s in (7.0, 10.0, 9.0)],
    }
    assert start.more_than_bare(rounds) == {"penstock": 2.0}
    assert start.medians(rounds["bare"]) == {"session": 6.0, "a task": 7.0}
    start.report(rounds, start.more_than_bare(rounds), 0.2)


def test_the_list_of_commands_is_timed() -> None:
    assert 0 < start.help_seconds(1) < 30


def test_a_batch_is_taken_apart() -> None:
    durations = [{"triggerExecution": 900, "addBatch": 800, "end": 90}] * floor.WARM_UP
    durations += [{"triggerExecution": 100, "addBatch": 90, "end": 4}] * 3
    job = floor.summarise([{"duration_ms": each} for each in durations])
    assert job == {"batch": 100, "spark_job": 90, "end": 4}
    found = floor.parts(job, 40.0, 10.0)
    assert found == {"spark_alone": 40.0, "appends": 10.0, "end": 4, "rest": 46.0}
    jobs = {floor.job_name(2, True): {**job, "parts": found}}
    floor.report(jobs, {"in_turn": 20.0, "at_once": 5.0})


def test_the_appends_of_a_batch_are_timed(tmp_path: Path) -> None:
    found = side_floor.appends({"work": str(tmp_path), "messages": 16, "batches": 2})
    assert [len(times) for times in found.values()] == [2, 2]


@pytest.mark.parametrize("exchanges", [1, 3])
@pytest.mark.parametrize("outputs", [False, True])
def test_the_jobs_can_be_built(exchanges: int, outputs: bool) -> None:
    graph = side_floor.application(exchanges, outputs).graph()
    assert len(graph.stores) == exchanges
    assert len(graph.outputs) == (2 if outputs else 0)
